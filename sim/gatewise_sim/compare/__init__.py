"""Reports of runs side by side: what differs, and whether it is more than chance."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
