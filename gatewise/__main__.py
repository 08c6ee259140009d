"""Entry point of ``python -m gatewise``, which runs the ``gatewise`` command."""

import sys

from gatewise.cli import main

sys.exit(main())
