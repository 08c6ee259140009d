"""Prices for tests, and the cost of features by its definition, without arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gatewise.costs import FeatureCosts


def price_of(costs: FeatureCosts, features: Iterable[int]) -> float:
    """Sum the features' own prices, and the shared price of each of their groups once."""
    chosen = set(features)
    groups = {int(costs.group[k]) for k in chosen} - {-1}
    own = sum(float(costs.own[k]) for k in chosen)
    return own + sum(float(costs.shared[g]) for g in groups)


def grouped_prices(k: int) -> FeatureCosts:
    """Make prices that are no binary fractions, in groups of four with shared prices."""
    groups = [f"g{i // 4}" if i % 3 else None for i in range(k)]
    shared = {g: 0.3 + 0.1 * i for i, g in enumerate(sorted({g for g in groups if g}))}
    return FeatureCosts(np.linspace(0.1, 1.7, k), group=groups, shared=shared)
