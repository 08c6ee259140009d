"""Thresholds between systems that are known by their outcomes alone, as the rows of a table."""
