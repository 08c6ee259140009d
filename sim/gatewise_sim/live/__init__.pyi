# The package's public names; loaded on first use.
from .demo_runs import Run as Run
from .demo_runs import Settings as Settings
from .demo_runs import check as check
from .demo_runs import run as run
from .fleet import LiveRun as LiveRun
from .fleet import check_live as check_live
from .fleet import run_live as run_live
