"""``python -m gatewise``: the ``gatewise`` command."""

import sys

from gatewise.cli import main

sys.exit(main())
