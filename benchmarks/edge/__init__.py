"""Bundles and device processes for the benchmarks of the edge."""
