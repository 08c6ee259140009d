"""The drawings of the report pages: SVG from plain numbers, colours from the style sheet."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
