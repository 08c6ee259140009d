"""A fitted system or a bundle as C99: no heap, tables in flash, one callback that buys a feature.

- :mod:`~gatewise_export.c99.cascade`: what is written, of a system or of a bundle;
- :mod:`~gatewise_export.c99.layout`: the features it keeps, their codes, the sizes;
- :mod:`~gatewise_export.c99.trees`, :mod:`~gatewise_export.c99.tables`: models as const arrays;
- :mod:`~gatewise_export.c99.engine`: the C that runs them; :mod:`~gatewise_export.c99.source` and
  :mod:`~gatewise_export.c99.example` put the files together, :mod:`~gatewise_export.c99.writer`
  writes them;
- :mod:`~gatewise_export.c99.compiled` builds them on this machine and runs rows through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_export.c99.writer import CSource, to_c

__all__ = ["CSource", "to_c"]

__getattr__, __dir__ = lazy_names(__name__, {"CSource": "writer", "to_c": "writer"})
