"""Neural feature acquisition, run by its authors' code."""
