"""Cascades."""
