"""What a fleet would cost, before it is bought: the system and its baselines on one scenario."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
