# The package's public names; loaded on first use.

from .store import Store as Store
from .updater import Updater as Updater
