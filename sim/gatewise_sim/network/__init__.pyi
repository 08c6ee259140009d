# The package's public names; loaded on first use.
from .direction import Direction as Direction
from .direction import VirtualLink as VirtualLink
from .outages import Outages as Outages
from .profiles import PROFILES as PROFILES
from .profiles import LinkProfile as LinkProfile
from .profiles import profile as profile
from .profiles import read_profile as read_profile
from .proxy import DelayProxy as DelayProxy
