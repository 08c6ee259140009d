"""Learn a cascade under a budget: gates, low-cost models, budgeted trees and frontiers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
