"""Compiled growth of single trees on coded columns."""
