"""Find out what is wrong between a device and its cloud, and what to do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
