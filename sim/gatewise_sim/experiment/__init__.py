"""Simulations and sweeps: rows, policies, runs and the demo."""
