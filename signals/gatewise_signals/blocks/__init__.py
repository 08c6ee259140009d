"""Blocks that are built in, and those of users."""
