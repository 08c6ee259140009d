"""The cost of features counted from the definition, without any of the library's arrays."""

from __future__ import annotations

from collections.abc import Iterable

from gatewise.costs import FeatureCosts


def price_of(costs: FeatureCosts, features: Iterable[int]) -> float:
    """Own prices of the features, and each touched group's shared price once."""
    chosen = set(features)
    groups = {int(costs.group[k]) for k in chosen} - {-1}
    own = sum(float(costs.own[k]) for k in chosen)
    return own + sum(float(costs.shared[g]) for g in groups)
