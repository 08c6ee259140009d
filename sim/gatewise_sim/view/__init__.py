"""What a user sees while a simulation runs: a terminal dashboard and a small local page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
