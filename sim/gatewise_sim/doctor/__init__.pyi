# The package's public names; loaded on first use.
from .checkup import examine as examine
from .settings import DeviceSettings as DeviceSettings
