"""A simulation: its rows, its policies, its run, and sweeps of it."""
