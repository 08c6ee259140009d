"""Forests within a budget: grown for a low cost of features, or pruned for it."""
