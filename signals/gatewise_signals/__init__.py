"""Blocks: features computed from signals and pictures, with measured prices."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
