"""Costs of features and feature groups.

For one instance, acquiring the set ``S`` of features costs::

    sum(own[k] for k in S) + sum(shared[g] for g in groups touched by S)

A feature touches its own group and all groups that its group requires. For example, a medical test
requires another test that comes first, and many features require the same spectrum. An offloaded
instance also pays for the features of the high-cost model that the device has not acquired, and the
prices of :class:`CloudPrices`. Training, devices, workers and the simulator all use this
definition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise.prices import (
    CloudPrices,
    GroupLabel,
    PriceList,
    list_groups,
    quoted_names,
    read_feature_groups,
    read_own_prices,
    read_prerequisites,
    read_shared_prices,
    request_bytes,
    split_names_and_prices,
)

__all__ = ["CloudPrices", "CostsLike", "FeatureCosts", "PricedItems", "request_bytes"]


class PricedItems(NamedTuple):
    """Items, which are features and groups, and the items that each feature pays for.

    Items are numbered from 0: first the features, then the groups.
    """

    price: NDArray[np.float64]  # (n_items,)
    start: NDArray[np.int64]  # (n_features + 1,): where the items of each feature begin in `items`
    items: NDArray[np.int64]  # items with a price above 0, one feature after another


class FeatureCosts:
    """Prices of features and of feature groups.

    Parameters
    ----------
    own : array-like of shape (n_features,), or mapping or pandas Series by name
        Price of each feature without the shared price of its group, at least 0. The keys of a
        mapping, or the texts of a Series' index, are the names of the features.
    group : sequence of n_features labels, or mapping of feature name to label, optional
        Group of each feature, an int or a str; None, NaN or -1 means no group. A feature that is
        not in the mapping has no group. An instance pays the shared price of a group once, when it
        acquires the first feature of the group.
    shared : mapping of label to price, or sequence indexed by int label, optional
        Shared price of each group; the price of other groups is 0.
    requires : mapping of group to group or sequence of groups, optional
        Groups that must be paid before another group. A required group may have no features.
    names : sequence of str, optional
        Names of the features, which messages contain and which match the columns of a table.

    Attributes
    ----------
    own : ndarray of float64, shape (n_features,)
    group : ndarray of intp, shape (n_features,)
        Index into `group_names`; -1 for no group.
    shared : ndarray of float64, shape (n_groups,)
    group_names : tuple of str
    requires : tuple of tuple of int
        Groups that each group requires directly, as indices.
    is_paid_with : ndarray of bool, shape (n_groups, n_groups)
        ``is_paid_with[g, h]`` says whether a feature of group g also pays the shared price of h,
        because h is g, or g requires h, directly or not.
    names : tuple of str or None

    Raises
    ------
    InputError
        If a price is negative, NaN or infinite, if a length does not match, if a name appears
        twice, if groups require each other, or if a group has a shared price but no feature or
        other group touches it. The message names the feature or group.

    Examples
    --------
    A blood sample costs 2.10, and each test on the sample has its own price:

    >>> costs = FeatureCosts([1.0, 5.17, 3.10], group=[None, "blood", "blood"],
    ...                      shared={"blood": 2.10}, names=["age", "chol", "fbs"])
    >>> round(costs.price([1, 2]), 2)
    10.37
    >>> round(costs.total, 2)
    11.37
    >>> FeatureCosts({"age": 1.0, "chol": 5.17, "fbs": 3.10}, shared={"blood": 2.10},
    ...              group={"chol": "blood", "fbs": "blood"}) == costs
    True

    A stress test requires an ECG:

    >>> tests = FeatureCosts([0.0, 0.0], group=["ecg", "stress"], requires={"stress": "ecg"},
    ...                      shared={"ecg": 15.0, "stress": 90.0})
    >>> tests.price([1]), tests.price([0, 1]), tests.price([1], acquired=[0])
    (105.0, 105.0, 90.0)
    """

    def __init__(
        self,
        own: ArrayLike | Mapping[str, float],
        *,
        group: Sequence[GroupLabel | None] | NDArray[Any] | Mapping[str, GroupLabel] | None = None,
        shared: Mapping[Any, float] | Sequence[float] | NDArray[Any] | None = None,
        requires: Mapping[Any, GroupLabel | Sequence[GroupLabel]] | None = None,
        names: Iterable[str] | None = None,
    ) -> None:
        own_names, own_values = split_names_and_prices(own)
        self.names = own_names if names is None else tuple(str(name) for name in names)
        if own_names is not None and self.names != own_names:
            raise InputError(
                "names= differs from the names that the feature costs already have: omit it"
            )
        self.own = read_own_prices(own_values, self.names)
        _check_feature_names(self.names, len(self.own))
        label_of_feature = read_feature_groups(group, self.names, len(self.own))
        prices = read_shared_prices(shared)
        prerequisites_of_label = read_prerequisites(requires)
        groups = list_groups(label_of_feature, prices, prerequisites_of_label)
        # read-only arrays of indices
        self.group_names: tuple[str, ...] = tuple(str(label) for label in groups)
        if len(set(self.group_names)) != len(groups):
            raise InputError("two groups have the same name; use either numbers or strings")
        self.group = np.array(
            [-1 if label is None else groups.index(label) for label in label_of_feature], np.intp
        )
        self.shared = np.array([prices.get(label, 0.0) for label in groups], np.float64)
        self.requires = tuple(
            tuple(map(groups.index, prerequisites_of_label.get(label, ()))) for label in groups
        )
        self.is_paid_with = _find_paid_groups(self.requires, self.group_names)
        for array in (self.own, self.group, self.shared, self.is_paid_with):
            array.setflags(write=False)

    @classmethod
    def uniform(cls, n_features: int, price: float = 1.0) -> FeatureCosts:
        """Make costs of `n_features` features that have the same `price` and no groups."""
        return cls(np.full(n_features, price))

    @classmethod
    def from_file(
        cls, path: str | Path, *, names: Sequence[str] | None = None, default: float | None = None
    ) -> FeatureCosts:
        """Read prices from a TOML or CSV file.

        A TOML file has a table ``[features]`` of ``name = price`` or
        ``name = {own = price, group = "g"}``, a table ``[groups]`` of ``g = shared price``, and at
        the top optionally ``default = price``; docs/tables.md describes more. A CSV file has the
        columns ``feature`` and ``own`` and optionally ``group`` and ``shared``.

        Parameters
        ----------
        path : str or Path
            A .toml or .csv file.
        names : sequence of str, optional
            Features that need a price, in order.
        default : float, optional
            Price of features that are not listed, if the file has no default.

        Returns
        -------
        FeatureCosts

        Raises
        ------
        InputError
            If the file is missing or malformed, or if features are unknown or have no price.
        """
        prices = PriceList.read(path)
        return cls.from_prices(prices, names=names, default=default)

    @classmethod
    def from_prices(
        cls, prices: PriceList, *, names: Sequence[str] | None = None, default: float | None = None
    ) -> FeatureCosts:
        """Make costs from a list of `prices`; see :meth:`from_file` for `names` and `default`."""
        feature_names = (
            [name for name in prices.features if name not in prices.dropped_columns]
            if names is None
            else names
        )
        feature_prices = prices.for_columns([str(name) for name in feature_names], default=default)
        features = feature_prices.features
        return cls(
            [column_price.own for column_price in features.values()],
            group=[column_price.group for column_price in features.values()],
            shared=feature_prices.groups,
            names=features,
        )

    def in_order(self, names: Sequence[str]) -> FeatureCosts:
        """Return the costs in the order of `names`.

        Raises InputError if `names` are not exactly the names of the features.

        >>> FeatureCosts({"a": 1.0, "b": 2.0}).in_order(["b", "a"]).own.tolist()
        [2.0, 1.0]
        """
        if self.names == tuple(names):
            return self
        position_by_name = {name: position for position, name in enumerate(self.names or ())}
        absent_names = [name for name in names if name not in position_by_name]
        unknown_names = sorted(position_by_name.keys() - set(names))
        if absent_names or unknown_names:
            problems = [f"no feature cost for {quoted_names(absent_names)}"] if absent_names else []
            if unknown_names:
                problems.append(
                    f"a feature cost for {quoted_names(unknown_names)}, which is not a column of "
                    "the data"
                )
            raise InputError("; ".join(problems))
        return self.select([position_by_name[name] for name in names])

    def select(self, features: Sequence[int] | NDArray[np.intp]) -> FeatureCosts:
        """Get the costs of some `features`, in the order of these indices, and of their groups.

        >>> costs = FeatureCosts([1.0, 2.0, 3.0], group=["a", "b", "a"], shared={"a": 4.0})
        >>> costs.select([2, 0]).total
        8.0
        """
        groups = self.group_of_feature
        is_paid = self._mark_touched_groups(self.mask(features))
        paid_groups = [self.group_names[group] for group in np.flatnonzero(is_paid)]
        return FeatureCosts(
            self.own[features],
            group=[groups[feature] for feature in features],
            shared=dict(zip(paid_groups, self.shared[is_paid].tolist(), strict=True)),
            requires={
                group: required_groups
                for group, required_groups in self.prerequisites.items()
                if group in paid_groups
            },
            names=None if self.names is None else [self.names[feature] for feature in features],
        )

    @property
    def group_of_feature(self) -> list[str | None]:
        """Name of the group of each feature, or None without a group."""
        return [self.group_names[group] if group >= 0 else None for group in self.group.tolist()]

    @property
    def prerequisites(self) -> dict[str, tuple[str, ...]]:
        """Names of the groups that each group requires directly; other groups are absent."""
        names = self.group_names
        names_and_requirements = zip(names, self.requires, strict=True)
        return {
            name: tuple(names[group] for group in required_groups)
            for name, required_groups in names_and_requirements
            if required_groups
        }

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.own)

    @property
    def total(self) -> float:
        """Price of acquiring all features."""
        return self.price(np.arange(self.n_features))

    @property
    def standalone_prices(self) -> NDArray[np.float64]:
        """Price of each feature if it is the only one acquired, shape (n_features,)."""
        return self.additional_prices(np.zeros(self.n_features, bool))

    def mask(self, features: ArrayLike) -> NDArray[np.bool_]:
        """Convert indices or a mask of `features` to a mask of shape (n_features,)."""
        mask = np.zeros(self.n_features, bool)
        feature_array = np.asarray(features)
        mask[feature_array if feature_array.dtype == bool else feature_array.astype(np.intp)] = True
        return mask

    def price(self, features: ArrayLike, acquired: ArrayLike | None = None) -> float:
        """Compute the price of acquiring `features` in addition to `acquired` ones.

        Parameters
        ----------
        features, acquired : array-like
            Indices of features, or masks of shape (n_features,).

        Returns
        -------
        float
        """
        new_mask = self.mask(features)
        unpaid_groups = self._mark_touched_groups(new_mask)
        if acquired is not None:
            acquired_mask = self.mask(acquired)
            new_mask &= ~acquired_mask
            unpaid_groups &= ~self._mark_touched_groups(acquired_mask)
        return math.fsum([*self.own[new_mask].tolist(), *self.shared[unpaid_groups].tolist()])

    def instance_costs(self, acquired: ArrayLike) -> NDArray[np.float64]:
        """Compute the cost of each instance from the features that it acquired.

        Parameters
        ----------
        acquired : array-like of bool, shape (n_instances, n_features)

        Returns
        -------
        ndarray of float64, shape (n_instances,)
            The same values as :meth:`price` gives for each row.
        """
        acquired = np.asarray(acquired, bool)
        touched_groups = (
            acquired[:, self.is_paid_with[:, group][self.group] & (self.group >= 0)].any(
                axis=1, keepdims=True
            )
            for group in range(len(self.shared))
        )
        is_paid = np.hstack([acquired, *touched_groups])
        prices = np.concatenate([self.own, self.shared])
        if (prices == np.floor(prices)).all() and (prices < 2.0**53 / len(prices)).all():
            # sums of whole numbers below 2^53 are exact in any order
            return np.asarray(is_paid @ prices, np.float64)
        # few sets of features are distinct, so add the prices of each set once and exactly by fsum
        packed_sets = np.packbits(is_paid, axis=1)
        _, representatives, set_index = np.unique(
            packed_sets.view(f"V{packed_sets.shape[1]}")[:, 0],
            return_index=True,
            return_inverse=True,
        )
        price_list = prices.tolist()
        set_costs = [
            math.fsum(compress(price_list, is_paid[row].tolist())) for row in representatives
        ]
        return np.array(set_costs, np.float64)[set_index]

    def additional_prices(self, acquired: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Compute the price of one more feature after `acquired` ones, for each feature.

        Shapes: `acquired`, a mask, (n_features,); returns (n_features,), 0 for acquired features.
        """
        # own[k] + sum of the shared prices that are not paid yet and that feature k touches
        unpaid_shared = np.where(self._mark_touched_groups(acquired), 0.0, self.shared)
        # the index -1 of features without a group selects the 0 at the end
        group_price = np.append(self.is_paid_with @ unpaid_shared, 0.0)
        return np.asarray(np.where(acquired, 0.0, self.own + group_price[self.group]), np.float64)

    def members(self, feature: int) -> NDArray[np.intp]:
        """Return the features of the group of `feature`, or `feature` if it has no group."""
        group = self.group[feature]
        return np.array([feature]) if group < 0 else np.flatnonzero(self.group == group)

    def priced_items(self, factor: float = 1.0) -> PricedItems:
        """List the prices of features and groups, times `factor`, as :class:`PricedItems`.

        >>> costs = FeatureCosts([1.0, 0.0], group=[None, "a"], shared={"a": 3.0})
        >>> costs.priced_items().start.tolist(), costs.priced_items().items.tolist()
        ([0, 1, 2], [0, 2])
        """
        price = factor * np.append(self.own, self.shared)
        features = np.arange(self.n_features)
        grouped_features = np.flatnonzero(self.group >= 0)
        pair, group = np.nonzero(self.is_paid_with[self.group[grouped_features]])
        feature_of_item = np.append(features, grouped_features[pair])
        items = np.append(features, self.n_features + group)
        # the feature itself is the first of its items
        order = np.argsort(feature_of_item, kind="stable")
        order = order[price[items[order]] > 0]
        start = np.searchsorted(feature_of_item[order], np.arange(self.n_features + 1))
        return PricedItems(price, start.astype(np.int64), items[order].astype(np.int64))

    def _mark_touched_groups(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Compute the mask of the groups that features touch, shape (n_groups,)."""
        group_indices = self.group[mask]
        return np.asarray(self.is_paid_with[group_indices[group_indices >= 0]].any(axis=0))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureCosts):
            return NotImplemented
        return (
            self.names == other.names
            and self.group_names == other.group_names
            and np.array_equal(self.own, other.own)
            and np.array_equal(self.group, other.group)
            and np.array_equal(self.shared, other.shared)
            and self.requires == other.requires
        )

    def __hash__(self) -> int:
        return hash((self.own.tobytes(), self.group.tobytes(), self.shared.tobytes()))

    def __repr__(self) -> str:
        groups = f", {len(self.shared)} groups" if len(self.shared) else ""
        return f"FeatureCosts({self.n_features} features{groups}, total {self.total:g})"


#: Feature costs that estimators accept: by name, or in the order of the columns.
CostsLike: TypeAlias = FeatureCosts | Mapping[str, float] | ArrayLike


def _check_feature_names(names: tuple[str, ...] | None, n_features: int) -> None:
    """Raise InputError unless there are no names, or as many different ones as features."""
    if names is None:
        return
    if len(names) != n_features:
        raise InputError(
            f"{n_features} feature costs for {len(names)} feature names: give one for each"
        )
    repeated_names = [name for name, count in Counter(names).items() if count > 1]
    if repeated_names:
        raise InputError(f"feature name {sorted(repeated_names)[0]!r} appears twice in the costs")


def _find_paid_groups(requires: Sequence[Sequence[int]], names: Sequence[str]) -> NDArray[np.bool_]:
    """Compute which groups an instance pays with each group, bool (n_groups, n_groups)."""
    # paid[g] = {g} and the union of paid[h] over the groups h that g requires
    is_paid = np.eye(len(requires), dtype=bool)
    try:
        groups_in_order = list(TopologicalSorter(dict(enumerate(requires))).static_order())
    except CycleError as error:
        cycle = " requires ".join(repr(names[group]) for group in reversed(error.args[1]))
        raise InputError(f"groups require each other: {cycle}") from None
    for group in groups_in_order:
        for prerequisite in requires[group]:
            is_paid[group] |= is_paid[prerequisite]
    return is_paid
