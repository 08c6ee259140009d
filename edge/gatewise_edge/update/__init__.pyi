# The package's public names; loaded on first use.

from .settings import UpdateSettings as UpdateSettings
from .store import Store as Store
from .updater import Updater as Updater
