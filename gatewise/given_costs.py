"""Feature costs in the forms in which users give them: mappings, Series, sequences, labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise.prices import check_price

Label = int | str
"""Label of a feature group."""


def read_names(own: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Names and prices of `own`, a mapping or a Series by name; else None, and it as it is."""
    if isinstance(own, Mapping):
        return tuple(str(name) for name in own), list(own.values())
    index = getattr(own, "index", None)
    if hasattr(own, "to_numpy") and index is not None and hasattr(index, "dtype"):
        values = own.to_numpy()
        keys = tuple(index)
        return (keys, values) if all(isinstance(key, str) for key in keys) else (None, values)
    return None, own


def read_own_prices(own: ArrayLike, names: tuple[str, ...] | None) -> NDArray[np.float64]:
    """Read the own prices of features; errors name the feature, if `names` are known."""
    try:
        prices = np.array(own, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"feature costs must be numbers: {error}") from error
    if prices.ndim != 1 or not len(prices):
        raise InputError(f"feature costs must be a list of prices, not of shape {prices.shape}")
    wrong = ~(np.isfinite(prices) & (prices >= 0))
    for k in np.flatnonzero(wrong).tolist():
        name = repr(names[k]) if names is not None and k < len(names) else str(k)
        check_price(f"the cost of feature {name}", float(prices[k]))
    return prices


def read_label(group: Any) -> Label | None:
    """Read a group's label; None, NaN, -1 and an empty text mean no group."""
    if group is None or (isinstance(group, float) and math.isnan(group)):
        return None
    if isinstance(group, int | np.integer):
        return None if group < 0 else int(group)
    return str(group) or None


def read_shared_prices(shared: Any) -> dict[Label, float]:
    """Read shared prices, `shared` being a mapping by label or a sequence by number."""
    if shared is None:
        return {}
    items = shared.items() if isinstance(shared, Mapping) else enumerate(shared)
    prices: dict[Label, float] = {}
    for group, price in items:
        label = read_label(group)
        if label is None:
            raise InputError(f"shared price of group {group!r}: not a group")
        check_price(f"the shared price of group {group!r}", price)
        prices[label] = float(price)
    return prices


def read_prerequisites(requires: Any) -> dict[Label, tuple[Label, ...]]:
    """Read the groups that a group `requires`, each a label or several."""
    prerequisites: dict[Label, tuple[Label, ...]] = {}
    for group, required in (requires or {}).items():
        listed = [required] if isinstance(required, str | int) else list(required)
        labels = [read_label(g) for g in (group, *listed)]
        if any(g is None for g in labels):
            raise InputError(f"requires: group {group!r} and {required!r} are not all groups")
        name, *prerequisite_labels = (g for g in labels if g is not None)
        prerequisites[name] = tuple(dict.fromkeys(prerequisite_labels))
    return prerequisites
