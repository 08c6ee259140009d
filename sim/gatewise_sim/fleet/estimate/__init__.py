"""Estimates of what a large fleet does, from sampled windows, with confidence intervals."""
