# The package's public names; loaded on first use.
from .session import Viewing as Viewing
from .session import open_watch as open_watch
