"""Experiments of :mod:`benchmarks.bench_loop`, and the page of their results."""
