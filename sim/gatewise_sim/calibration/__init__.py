"""How long things take on real machines, for virtual time: assumed, measured, or from a file."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
