# The package's public names; loaded on first use.
from .draw import Arrivals as Arrivals
from .draw import arrivals as arrivals
from .draw import parse as parse
from .kinds import Bursty as Bursty
from .kinds import Diurnal as Diurnal
from .kinds import Periodic as Periodic
from .kinds import Poisson as Poisson
from .kinds import Replay as Replay
from .kinds import Workload as Workload
from .row_mix import RowMix as RowMix
