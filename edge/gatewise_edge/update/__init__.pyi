# The package's public names; loaded on first use.
from .announcement import Announcement as Announcement
from .errors import UpdateError as UpdateError
from .publisher import publish as publish
from .store import Store as Store
from .updater import Updater as Updater
