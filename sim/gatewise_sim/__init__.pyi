# The package's public names; loaded on first use.
from .errors import RunError as RunError
from .experiment.demo import run_demo as run_demo
from .experiment.demo_settings import DemoSettings as DemoSettings
from .experiment.scenario import Scenario as Scenario
from .experiment.simulation import Job as Job
from .experiment.simulation import simulate as simulate
from .fleet.estimate.stepping import estimate_fleet as estimate_fleet
from .fleet.money import Prices as Prices
from .fleet.network.link import LinkProfile as LinkProfile
from .fleet.network.link import VirtualLink as VirtualLink
from .fleet.network.outages import Outages as Outages
from .fleet.network.profiles import PROFILES as PROFILES
from .fleet.network.proxy import DelayProxy as DelayProxy
from .fleet.routes import Routes as Routes
from .fleet.run import simulate_fleet as simulate_fleet
from .fleet.settings import FleetSettings as FleetSettings
from .fleet.worker import ServiceTime as ServiceTime
