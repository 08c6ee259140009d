"""Run a bundle on a device: sensors, stages, answers in time, and the cloud over MQTT.

Importing this package loads nothing but the standard library; its names load what they need.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
