"""From a fitted system to a bundle: ONNX graphs, a manifest, and the proof that they agree."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
