# The package's public names; loaded on first use.
from .checkup import Patient as Patient
from .checkup import examine as examine
