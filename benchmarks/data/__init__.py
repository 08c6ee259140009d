"""Data sets of the benchmarks, and how to fetch them."""
