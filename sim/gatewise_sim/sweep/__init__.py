"""What-if sweeps: one simulation for every combination of some settings, in parallel."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
