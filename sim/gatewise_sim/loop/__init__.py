"""Simulation of a fleet that learns from labels over days, with refits and releases."""
