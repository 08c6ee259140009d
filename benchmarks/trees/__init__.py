"""Budgeted trees, their pruning and CEGB against the papers and other solvers."""
