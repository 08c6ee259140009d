"""Answer the hard instances: workers, their models and batches, and a broker to start with."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
