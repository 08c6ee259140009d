"""Costs of features and feature groups, requests, bytes and cloud evaluations.

One definition for training, device, cloud and simulator, in numpy alone so that a device
can read it. For one instance, acquiring the set ``S`` of features costs::

    sum(own[k] for k in S) + sum(shared[g] for g in groups touched by S)

An instance that is offloaded also pays for the features of the high-cost model that the
device has not acquired yet, and the prices of :class:`CloudPrices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise.prices import CloudPrices, PriceList, check_price, request_bytes

__all__ = ["CloudPrices", "CostsLike", "FeatureCosts", "request_bytes"]

Label = int | str


class FeatureCosts:
    """Prices of features and of feature groups.

    Parameters
    ----------
    own : array-like of shape (n_features,), or mapping or pandas Series by name
        What feature ``k`` costs by itself, at least 0. Keys, and a Series' index of texts, are the
        features' names.
    group : sequence of n_features labels, or mapping of feature name to label, optional
        The group of each feature: an int, a str, or None (as -1) for no group; features that a
        mapping leaves out have none. A group's shared price is paid once, when the first of its
        features is acquired.
    shared : mapping of label to price, or sequence indexed by int label, optional
        Shared price of each group; groups that are not listed share no price.
    names : sequence of str, optional
        The features' names, for messages and for matching a table's columns.

    Attributes
    ----------
    own : ndarray of float64, shape (n_features,)
    group : ndarray of intp, shape (n_features,)
        Index into `group_names`, -1 for no group.
    shared : ndarray of float64, shape (n_groups,)
    group_names : tuple of str
    names : tuple of str or None

    Raises
    ------
    InputError
        If a price is negative, NaN or infinite, a length does not match, a name is double, or
        a shared price names a group that no feature belongs to. The message names which.

    Examples
    --------
    A blood sample costs 2.10, each test on it its own price:

    >>> costs = FeatureCosts([1.0, 5.17, 3.10], group=[None, "blood", "blood"],
    ...                      shared={"blood": 2.10}, names=["age", "chol", "fbs"])
    >>> round(costs.price([1, 2]), 2)
    10.37
    >>> round(costs.total, 2)
    11.37
    >>> FeatureCosts({"age": 1.0, "chol": 5.17, "fbs": 3.10}, shared={"blood": 2.10},
    ...              group={"chol": "blood", "fbs": "blood"}) == costs
    True
    """

    def __init__(
        self,
        own: ArrayLike | Mapping[str, float],
        *,
        group: Sequence[Label | None] | NDArray[Any] | Mapping[str, Label] | None = None,
        shared: Mapping[Any, float] | Sequence[float] | NDArray[Any] | None = None,
        names: Iterable[str] | None = None,
    ) -> None:
        keys, values = _keyed(own)
        self.names = keys if names is None else tuple(str(n) for n in names)
        if keys is not None and self.names != keys:
            raise InputError("feature costs by name, and other names beside them")
        self.own = _own_prices(values, self.names)
        n = len(self.own)
        if self.names is not None:
            if len(self.names) != n:
                raise InputError(f"{n} feature costs but {len(self.names)} feature names")
            doubles = {x for x in self.names if self.names.count(x) > 1}
            if doubles:
                raise InputError(f"feature name {sorted(doubles)[0]!r} stands twice in the costs")
        if isinstance(group, Mapping):
            strange = [name for name in group if name not in (self.names or ())]
            if strange:
                raise InputError(f"group of {strange[0]!r}, which is no feature")
            group = [group.get(name) for name in self.names or ()]
        labels = [None] * n if group is None else [_label(g) for g in group]
        if len(labels) != n:
            raise InputError(f"{n} feature costs but {len(labels)} group labels")
        prices = _shared_prices(shared)
        present = list(dict.fromkeys(g for g in labels if g is not None))
        unknown = [g for g in prices if g not in present and prices[g] != 0.0]
        if unknown:
            raise InputError(f"shared price of group {unknown[0]!r}, but no feature is in it")
        self.group_names: tuple[str, ...] = tuple(str(g) for g in present)
        if len(set(self.group_names)) != len(present):
            raise InputError("two groups have the same name; use either numbers or strings")
        self.group = np.array([-1 if g is None else present.index(g) for g in labels], np.intp)
        self.shared = np.array([prices.get(g, 0.0) for g in present], np.float64)
        for array in (self.own, self.group, self.shared):
            array.setflags(write=False)

    @classmethod
    def uniform(cls, n_features: int, price: float = 1.0) -> FeatureCosts:
        """Make costs of `price` for every feature, without groups.

        Examples
        --------
        >>> FeatureCosts.uniform(16).total
        16.0
        """
        return cls(np.full(n_features, price))

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        names: Sequence[str] | None = None,
        default: float | None = None,
    ) -> FeatureCosts:
        """Read prices from a TOML or CSV file.

        TOML: a table ``[features]`` of ``name = price`` or ``name = {own = price, group =
        "g"}``, ``[groups]`` of ``g = shared price``, and at the top ``default = price`` for
        features that are not listed; docs/tables.md has the rest. CSV: a header with ``feature``
        and ``own`` and, if wanted, ``group`` and ``shared`` (the same on each row of a group).

        Parameters
        ----------
        path : str or Path
            The file; its ending (.toml or .csv) is its format.
        names : sequence of str, optional
            The features that must be priced, in the order wanted (a table's columns).
        default : float, optional
            Price of features that the file neither lists nor has a default for.

        Raises
        ------
        InputError
            If the file is missing or malformed, or if features are unknown or have no price.
        """
        prices = PriceList.read(path)
        return cls.from_prices(prices, names=names, default=default)

    @classmethod
    def from_prices(
        cls,
        prices: PriceList,
        *,
        names: Sequence[str] | None = None,
        default: float | None = None,
    ) -> FeatureCosts:
        """Make costs of a list of prices; as :meth:`from_file` of its file."""
        order = [n for n in prices.features if n not in prices.dropped] if names is None else names
        listed = prices.of_columns([str(n) for n in order], default=default)
        features = listed.features
        return cls(
            [entry.own for entry in features.values()],
            group=[entry.group for entry in features.values()],
            shared=listed.groups,
            names=features,
        )

    def in_order(self, names: Sequence[str]) -> FeatureCosts:
        """Get the same prices in the order of `names`; InputError unless both name the same.

        Examples
        --------
        >>> FeatureCosts({"a": 1.0, "b": 2.0}).in_order(["b", "a"]).own.tolist()
        [2.0, 1.0]
        """
        if self.names == tuple(names):
            return self
        known = {name: k for k, name in enumerate(self.names or ())}
        absent = [name for name in names if name not in known]
        if absent:
            raise InputError(f"no feature cost for {', '.join(map(repr, absent[:8]))}")
        strange = sorted(known.keys() - set(names))
        if strange:
            raise InputError(f"a feature cost for {strange[0]!r}, which is no column of the data")
        index = [known[name] for name in names]
        groups = [self.group_names[g] if g >= 0 else None for g in self.group[index].tolist()]
        shared = dict(zip(self.group_names, self.shared.tolist(), strict=True))
        return FeatureCosts(self.own[index], group=groups, shared=shared, names=names)

    @property
    def n_features(self) -> int:
        """Number of features priced."""
        return len(self.own)

    @property
    def total(self) -> float:
        """Price of acquiring every feature: what offloading every instance costs."""
        return self.price(np.arange(self.n_features))

    @property
    def alone(self) -> NDArray[np.float64]:
        """Price of each feature by itself, its group's shared price included, (n_features,)."""
        return np.asarray(self.own + np.append(self.shared, 0.0)[self.group], np.float64)

    def mask(self, features: ArrayLike) -> NDArray[np.bool_]:
        """Get indices (or a mask) of features as a mask of shape (n_features,)."""
        chosen = np.zeros(self.n_features, bool)
        index = np.asarray(features)
        chosen[index if index.dtype == bool else index.astype(np.intp)] = True
        return chosen

    def price(self, features: ArrayLike, acquired: ArrayLike | None = None) -> float:
        """Get the price of acquiring `features` when `acquired` ones are already paid.

        Parameters
        ----------
        features, acquired : array-like
            Indices of features, or masks of shape (n_features,).

        Returns
        -------
        float
            Own prices of the new features and shared prices of the groups newly touched.
        """
        new = self.mask(features)
        groups = self._touched(new)
        if acquired is not None:
            old = self.mask(acquired)
            new &= ~old
            groups &= ~self._touched(old)
        return math.fsum([*self.own[new].tolist(), *self.shared[groups].tolist()])

    def per_instance(self, acquired: ArrayLike) -> NDArray[np.float64]:
        """Get the cost of each instance, given the features that it acquired.

        Parameters
        ----------
        acquired : array-like of bool, shape (n_instances, n_features)

        Returns
        -------
        ndarray of float64, shape (n_instances,)
            For each row exactly what :meth:`price` gives.
        """
        acquired = np.asarray(acquired, bool)
        touched = (
            acquired[:, self.group == g].any(axis=1, keepdims=True) for g in range(len(self.shared))
        )
        paid = np.hstack([acquired, *touched])
        prices = np.concatenate([self.own, self.shared])
        if (prices == np.floor(prices)).all() and (prices < 2.0**53 / len(prices)).all():
            return np.asarray(paid @ prices, np.float64)  # exact in any order
        keys = np.packbits(paid, axis=1)  # rows pay for one of a few sets
        _, first, which = np.unique(
            keys.view(f"V{keys.shape[1]}")[:, 0], return_index=True, return_inverse=True
        )
        listed = prices.tolist()
        sums = [math.fsum(compress(listed, paid[i].tolist())) for i in first]
        return np.array(sums, np.float64)[which]

    def members(self, feature: int) -> NDArray[np.intp]:
        """Get the features of the group of `feature`, or itself alone."""
        g = self.group[feature]
        return np.array([feature]) if g < 0 else np.flatnonzero(self.group == g)

    def _touched(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        touched = np.zeros(len(self.shared), bool)
        ids = self.group[mask]
        touched[ids[ids >= 0]] = True
        return touched

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureCosts):
            return NotImplemented
        return (
            self.names == other.names
            and self.group_names == other.group_names
            and np.array_equal(self.own, other.own)
            and np.array_equal(self.group, other.group)
            and np.array_equal(self.shared, other.shared)
        )

    def __hash__(self) -> int:
        return hash((self.own.tobytes(), self.group.tobytes(), self.shared.tobytes()))

    def __repr__(self) -> str:
        groups = f", {len(self.shared)} groups" if len(self.shared) else ""
        return f"FeatureCosts({self.n_features} features{groups}, total {self.total:g})"


CostsLike: TypeAlias = FeatureCosts | Mapping[str, float] | ArrayLike
"""What estimators take as feature costs: by name, or in the columns' order."""


def _keyed(own: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Names and prices of a mapping or a Series by name; None and the prices as they are."""
    if isinstance(own, Mapping):
        return tuple(str(name) for name in own), list(own.values())
    index = getattr(own, "index", None)
    if hasattr(own, "to_numpy") and index is not None and hasattr(index, "dtype"):
        values, keys = own.to_numpy(), tuple(index)
        return (keys, values) if all(isinstance(key, str) for key in keys) else (None, values)
    return None, own


def _own_prices(own: ArrayLike, names: tuple[str, ...] | None) -> NDArray[np.float64]:
    try:
        prices = np.array(own, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"feature costs must be numbers: {error}") from error
    if prices.ndim != 1 or not len(prices):
        raise InputError(f"feature costs must be a list of prices, not of shape {prices.shape}")
    for k, price in enumerate(prices):
        name = repr(names[k]) if names is not None and k < len(names) else str(k)
        check_price(f"the cost of feature {name}", float(price))
    return prices


def _label(group: Any) -> Label | None:
    if group is None or (isinstance(group, float) and math.isnan(group)):
        return None
    if isinstance(group, int | np.integer):
        return None if group < 0 else int(group)
    return str(group) or None


def _shared_prices(shared: Any) -> dict[Label, float]:
    if shared is None:
        return {}
    items = shared.items() if isinstance(shared, Mapping) else enumerate(shared)
    prices: dict[Label, float] = {}
    for group, price in items:
        label = _label(group)
        if label is None:
            raise InputError(f"shared price of group {group!r}: not a group")
        check_price(f"the shared price of group {group!r}", price)
        prices[label] = float(price)
    return prices
