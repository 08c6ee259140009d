# The package's public names; loaded on first use.
from .writer import CSource as CSource
from .writer import to_c as to_c
