"""Links: profiles of real networks, outages, a proxy; the same arithmetic in virtual time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
