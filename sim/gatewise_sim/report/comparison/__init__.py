"""Comparison of runs: figures, differences with their intervals, a table and a plot."""
