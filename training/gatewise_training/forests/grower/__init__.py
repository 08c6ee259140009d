"""Grower."""
