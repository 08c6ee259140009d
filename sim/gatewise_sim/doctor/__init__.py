"""Checks of an installation and of a device's connection to its cloud."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
