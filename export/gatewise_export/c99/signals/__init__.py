"""Blocks of signals as C99: fixed memory, steps computed when a feature is acquired.

- :mod:`~gatewise_export.c99.signals.step_code`: the C of one step, its tables and memory;
- :mod:`~gatewise_export.c99.signals.kinds`: the call of each kind of step;
- :mod:`~gatewise_export.c99.signals.signal_plan`: the steps in order, and where their results lie
  (:mod:`~gatewise_export.c99.signals.memory`);
- :mod:`~gatewise_export.c99.signals.signal_writer`: the files and their self-test.
"""
