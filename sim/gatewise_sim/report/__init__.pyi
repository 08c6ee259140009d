# The package's public names; loaded on first use.
from .legs import POLICIES as POLICIES
from .legs import Expected as Expected
from .legs import Leg as Leg
from .legs import compare as compare
from .legs import measure as measure
from .legs import to_json as to_json
from .output import DEMO as DEMO
from .output import SIMULATION as SIMULATION
from .output import Output as Output
from .tables import csv_files as csv_files
