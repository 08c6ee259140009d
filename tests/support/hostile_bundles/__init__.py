"""Hostile bundles, made by changes of a good one, and the expected error messages."""
