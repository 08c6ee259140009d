"""Runs of virtual fleets."""
