"""Write fitted systems as bundles, ONNX graphs and C99, and check their decisions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
