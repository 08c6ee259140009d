"""Budgeted trees, their pruning and CEGB beside the papers and other solvers."""
