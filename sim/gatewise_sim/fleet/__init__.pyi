# The package's public names; loaded on first use.
from .answers import Answers as Answers
from .estimate import FleetEstimate as FleetEstimate
from .intervals import Estimate as Estimate
from .routing import Routes as Routes
from .run import FleetRun as FleetRun
from .run import simulate_fleet as simulate_fleet
from .scale import estimate_fleet as estimate_fleet
from .settings import FleetSettings as FleetSettings
from .worker import ServiceTime as ServiceTime
