"""Prices of :mod:`gatewise.costs`, also importable from ``gatewise_training``."""

from gatewise.costs import CloudPrices, FeatureCosts

__all__ = ["CloudPrices", "FeatureCosts"]
