"""Comparison of budgeted trees, pruning and CEGB with their papers and other solvers."""
