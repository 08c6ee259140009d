"""Prices for tests, and the cost of features by its definition, without arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gatewise.costs import FeatureCosts


def sum_prices(costs: FeatureCosts, features: Iterable[int]) -> float:
    """Sum the features' own prices, and the shared price of each of their groups once."""
    feature_set = set(features)
    groups = {int(costs.group[k]) for k in feature_set} - {-1}
    own_price = sum(float(costs.own[k]) for k in feature_set)
    return own_price + sum(float(costs.shared[g]) for g in groups)


def make_grouped_prices(n_features: int) -> FeatureCosts:
    """Make prices that are no binary fractions, in groups of four with shared prices."""
    groups = [f"g{i // 4}" if i % 3 else None for i in range(n_features)]
    shared = {g: 0.3 + 0.1 * i for i, g in enumerate(sorted({g for g in groups if g}))}
    return FeatureCosts(np.linspace(0.1, 1.7, n_features), group=groups, shared=shared)
