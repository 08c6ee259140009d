# The package's public names; loaded on first use.
from .job import Job as Job
from .job import Simulation as Simulation
from .job import simulate as simulate
from .scenario import Scenario as Scenario
