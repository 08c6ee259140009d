"""A fitted system or a bundle as C99: no heap, tables in flash, one callback acquires a feature.

- :mod:`~gatewise_export.c99.cascade`: what is written, of a system or of a bundle;
- :mod:`~gatewise_export.c99.layout`: the features it keeps, their codes, the sizes;
- :mod:`~gatewise_export.c99.trees`, :mod:`~gatewise_export.c99.c_text`: models as const arrays;
- :mod:`~gatewise_export.c99.source`: the templates' C put together;
  :mod:`~gatewise_export.c99.writer` writes the files.
"""
