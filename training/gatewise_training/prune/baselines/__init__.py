"""Prunings that the papers compare with."""
