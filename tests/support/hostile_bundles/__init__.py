"""Hostile bundles by kind: what is done to a good one, and what must be said."""
