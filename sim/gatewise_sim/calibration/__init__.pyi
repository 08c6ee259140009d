# The package's public names; loaded on first use.
from .figures import Calibration as Calibration
from .measuring import calibrate as calibrate
