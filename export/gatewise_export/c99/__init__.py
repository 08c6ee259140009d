"""A fitted system or a bundle as C99: no heap, tables in flash, one callback that buys a feature.

- :mod:`~gatewise_export.c99.cascade`: what is written, of a system or of a bundle;
- :mod:`~gatewise_export.c99.layout`: the features it keeps, their codes, the sizes;
- :mod:`~gatewise_export.c99.trees`, :mod:`~gatewise_export.c99.tables`: models as const arrays;
- :mod:`~gatewise_export.c99.engine`: the C that runs them; :mod:`~gatewise_export.c99.source` and
  :mod:`~gatewise_export.c99.example` put the files together, :mod:`~gatewise_export.c99.writer`
  writes them;
- :mod:`~gatewise_export.c99.compiled` builds them on this machine and runs rows through them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
