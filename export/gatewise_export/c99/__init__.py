"""A fitted system or a bundle as C99: no heap, tables in flash, one callback for the features.

- :mod:`~gatewise_export.c99.cascade`: the stages that a device can reach, read from a system or a
  bundle (:mod:`~gatewise_export.c99.cascade_reader`);
- :mod:`~gatewise_export.c99.layout`: the memory of an instance, packed trees, codes, sizes;
- :mod:`~gatewise_export.c99.probes`: rows for the self-test, made from the model;
- :mod:`~gatewise_export.c99.source`: the templates' C put together;
  :mod:`~gatewise_export.c99.writer` writes the files.
"""
