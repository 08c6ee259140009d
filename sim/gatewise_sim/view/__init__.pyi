# The package's public names; loaded on first use.
from .session import Viewing as Viewing
from .session import open_watch as open_watch
from .watch import Several as Several
from .watch import Silent as Silent
from .watch import Snapshot as Snapshot
from .watch import Watch as Watch
