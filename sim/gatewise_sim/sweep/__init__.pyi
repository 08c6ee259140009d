# The package's public names; loaded on first use.
from .calibrated import calibrated_once as calibrated_once
from .run import PointResult as PointResult
from .run import SweepResult as SweepResult
from .run import run_sweep as run_sweep
from .settings import Sweep as Sweep
from .settings import combinations as combinations
