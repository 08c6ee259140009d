"""Cascades: budgeted classifiers with a high-cost model, or stages alone, and their fit."""
