"""``python -m gatewise_sim``: the ``gatewise`` command."""

import sys

from gatewise_sim.cli import main

sys.exit(main())
