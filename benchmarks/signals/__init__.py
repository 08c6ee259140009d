"""Fits and page of :mod:`benchmarks.bench_signals`."""
