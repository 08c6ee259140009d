# The package's public names; loaded on first use.
from .difference import Difference as Difference
from .difference import compare_runs as compare_runs
from .figures import FIGURES as FIGURES
from .figures import Figure as Figure
from .figures import Measured as Measured
from .figures import measured as measured
from .read import Run as Run
from .read import read_runs as read_runs
