# The package's public names; loaded on first use.
from .errors import RunError as RunError
from .experiment.demo import run_demo as run_demo
from .experiment.demo_settings import DemoSettings as DemoSettings
from .experiment.row_table import make_row_table as make_row_table
from .experiment.simulation import Job as Job
from .experiment.simulation import simulate as simulate
from .experiment.sweep import run_sweep as run_sweep
from .fleet.energy import DeviceEnergy as DeviceEnergy
from .fleet.energy import Prices as Prices
from .fleet.link import PROFILES as PROFILES
from .fleet.link import LinkProfile as LinkProfile
from .fleet.results import RowTable as RowTable
from .fleet.run import FleetPolicy as FleetPolicy
from .fleet.run import run_fleet as run_fleet
from .report.document import Report as Report
from .scenario import Scenario as Scenario
from .timings import Timings as Timings
