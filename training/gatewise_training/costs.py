"""Names of :mod:`gatewise.costs` that ``gatewise_training`` offers beside its estimators."""

from gatewise.costs import CloudPrices, FeatureCosts

__all__ = ["CloudPrices", "FeatureCosts"]
