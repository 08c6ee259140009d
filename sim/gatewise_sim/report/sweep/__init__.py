"""Sweeps of settings: what follows from their points, as a table, a page and CSV."""
