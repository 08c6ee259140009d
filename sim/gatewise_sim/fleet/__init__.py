"""A fleet in virtual time: the runtime's own bookkeeping on a simulated clock and network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
