# The package's public names; loaded on first use.
from .device import DeviceEnergy as DeviceEnergy
from .meter import Acquisition as Acquisition
from .meter import RadioMeter as RadioMeter
from .meter import battery_days as battery_days
from .meter import joules_per_device_day as joules_per_device_day
from .meter import radio_joules as radio_joules
from .radio import RADIOS as RADIOS
from .radio import Radio as Radio
