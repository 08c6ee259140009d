"""Cloud side of Gatewise: workers, high-cost models, brokers and rollouts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
