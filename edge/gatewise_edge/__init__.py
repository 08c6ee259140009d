"""Run a bundle on a device: sensors, stages, answers in time, and the cloud over MQTT.

Importing this package loads only the standard library. Each name loads its module on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
