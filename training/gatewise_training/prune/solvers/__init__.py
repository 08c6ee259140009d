"""Solvers of the pruning problem for one price of cost."""
