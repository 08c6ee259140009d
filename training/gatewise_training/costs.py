"""Prices of :mod:`gatewise.costs` under the names of ``gatewise_training``."""

from gatewise.costs import CloudPrices, FeatureCosts

__all__ = ["CloudPrices", "FeatureCosts"]
