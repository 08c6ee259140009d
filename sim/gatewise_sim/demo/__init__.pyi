# The package's public names; loaded on first use.
from .run import Options as Options
from .run import run_demo as run_demo
