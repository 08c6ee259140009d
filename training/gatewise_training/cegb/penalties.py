"""Charges for splits while trees grow: the three penalties of CEGB, and their use in LightGBM.

CEGB (NIPS 2017, equation 13) charges a split on feature ``m`` of a node with the rows ``I_p`` ::

    |I_p| alpha_m + gamma_m (1 - D_m) + sum over i in I_p of beta_m (1 - C_im)

- ``alpha`` is the price of evaluating the split for one row. The paper has a single ``alpha``, and
  prices by feature in section 5.2.
- ``gamma`` is the coupled price of the feature. It is paid once, at the first use by any tree
  (``D_m = 1`` after that).
- ``beta`` is the lazy price of the feature. Each row pays it once (``C_im = 1`` once row i has
  acquired the feature).

LightGBM has all three, with a single ``alpha``. It has no shared prices of groups, but prices can
be changed between rounds:

- With coupled prices, a feature carries the shared price of its group until a tree uses a feature
  of the group.
- With lazy prices, the price of a feature is its own price plus a part of the group's price. The
  part is, among the rows without the feature, the share that also lacks every feature of the group.
  At the start this is the full price. Later it is the mean price that the rows without the feature
  would pay. Prices do not change within a round, so two features of a group may both pay the shared
  price.

The costs of instances after the fit are exact in both cases
(:meth:`gatewise.costs.FeatureCosts.instance_costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.boosting import FirstUsePrices

Accounting = Literal["lazy", "coupled"]
Array = NDArray[np.float64]

#: LightGBM's lazy penalty stores a bit for each row and feature, and indexes them by int32.
MAX_LAZY_BITS = 2**31


def check_lazy_size(n_rows: int, n_features: int) -> None:
    """Refuse tables that are too large for LightGBM's lazy penalty, which gives no error itself."""
    if n_rows * n_features >= MAX_LAZY_BITS:
        raise InputError(
            f"accounting='lazy': {n_rows} rows times {n_features} features are more than "
            f"LightGBM's lazy penalty can count ({MAX_LAZY_BITS - 1}); give fewer rows or features"
        )


@dataclass(frozen=True, eq=False)
class SplitPrices:
    """Prices of equation 13, in the unit of the feature costs."""

    costs: FeatureCosts  # ``beta`` with lazy accounting, ``gamma`` with coupled accounting
    accounting: Accounting
    split: float | Array = 0.0  # ``alpha``: one price of a split, or (n_features,)
    coupled: Array | None = None  # (n_features,): ``gamma`` in addition to lazy prices

    @classmethod
    def of_settings(
        cls,
        costs: FeatureCosts,
        accounting: Accounting,
        split: float | Sequence[float],
        coupled: Sequence[float] | None,
    ) -> SplitPrices:
        """Check the settings of an estimator and make the prices.

        Equal prices of splits become a single one, which LightGBM can charge.
        """
        if coupled is not None and accounting == "coupled":
            raise InputError(
                "coupled_costs are prices in addition to lazy ones: set accounting='lazy'"
            )
        coupled_prices = None
        if coupled is not None:
            coupled_prices = _check_prices("coupled_costs", coupled, costs.n_features)
        if isinstance(split, int | float | np.number):
            return cls(costs, accounting, float(split), coupled_prices)
        split_prices = _check_prices("penalty_split", split, costs.n_features)
        if (split_prices == split_prices[0]).all():
            return cls(costs, accounting, float(split_prices[0]), coupled_prices)
        return cls(costs, accounting, split_prices, coupled_prices)

    @property
    def has_split_prices_by_feature(self) -> bool:
        """Whether the prices of splits differ by feature, which LightGBM does not support."""
        return isinstance(self.split, np.ndarray)

    def evaluation_costs(self, stage: Stage, x: NDArray[np.float32]) -> Array:
        """Compute the price of the splits that each row passes (equation 6), shape (n,)."""
        trees = stage.model
        assert isinstance(trees, TreeEnsemble)
        x_used = x[:, stage.features]
        if not isinstance(self.split, np.ndarray):
            return np.asarray(self.split * trees.splits_passed(x_used), np.float64)
        split_prices = self.split[stage.features]
        # price of the path to each node; a parent's index is below its children's
        path_price = np.zeros(trees.n_nodes)
        for node, parent in enumerate(trees.parent):
            if parent >= 0:
                path_price[node] = path_price[parent] + split_prices[trees.feature[parent]]
        leaves, _ = trees.first_visits(x_used)
        return np.asarray(path_price[leaves].sum(axis=0))

    def coupled_price(self, used_features: NDArray[np.intp]) -> float:
        """Sum the coupled prices of the features that the trees use."""
        return 0.0 if self.coupled is None else float(self.coupled[used_features].sum())


def _check_prices(name: str, prices: Sequence[float], n_features: int) -> Array:
    """Convert prices by feature to an array, and refuse invalid ones."""
    try:
        price_array = np.asarray(prices, np.float64)
    except (TypeError, ValueError):
        price_array = np.array(np.nan)
    if (
        price_array.shape != (n_features,)
        or not (np.isfinite(price_array) & (price_array >= 0.0)).all()
    ):
        raise InputError(f"{name} must hold {n_features} numbers of at least 0, one per feature")
    return price_array


class Charge:
    """Penalties of one fit, which change between rounds if features have groups.

    A unit of cost is charged as ``strength / (mean price of a feature)`` nats of mean loss, so
    `strength` is the mean loss that a feature of mean price must save. `price_factor` contains
    a factor of 2, because LightGBM's gain is twice the decrease of the summed loss.
    """

    def __init__(self, prices: SplitPrices, strength: float, x: NDArray[np.float32]) -> None:
        costs = prices.costs
        mean_price = costs.total / costs.n_features or 1.0  # all prices may be 0
        self.prices = prices
        self.price_factor = 2.0 * strength / mean_price
        self._x = x
        self._has_open_groups = bool(costs.shared.any()) and strength > 0

    @cached_property
    def _first_use_prices(self) -> FirstUsePrices | None:
        """Coupled prices of features and groups, or None with lazy accounting."""
        if self.prices.accounting == "lazy":
            return None
        return FirstUsePrices(self.prices.costs, self.price_factor * len(self._x))

    @cached_property
    def params(self) -> dict[str, Any]:
        """LightGBM's parameters at the start of the fit; empty if nothing is charged."""
        params: dict[str, Any] = {}
        lazy_prices = self.price_factor * self.prices.costs.standalone_prices
        if self._first_use_prices is not None:
            params |= self._first_use_prices.params
        elif lazy_prices.any():
            params["cegb_penalty_feature_lazy"] = lazy_prices.tolist()
        coupled_prices = self.prices.coupled
        if coupled_prices is not None and (self.price_factor * coupled_prices).any():
            # LightGBM's gain is a sum over the n rows: n * price_factor * gamma
            params["cegb_penalty_feature_coupled"] = (
                self.price_factor * len(self._x) * coupled_prices
            ).tolist()
        if (
            not self.prices.has_split_prices_by_feature
            and self.price_factor * self.prices.split > 0
        ):
            params["cegb_penalty_split"] = self.price_factor * self.prices.split
        if params:
            params["cegb_tradeoff"] = 1.0
        return params

    @cached_property
    def _acquired(self) -> NDArray[np.bool_]:
        """Features that each row has acquired; :meth:`update_group_prices` updates them."""
        return np.zeros(self._x.shape, np.bool_)

    def update_group_prices(self, booster: lgb.Booster, round_number: int) -> None:
        """Update the prices of groups after round `round_number`, counted from 0."""
        if self._first_use_prices is not None:
            self._first_use_prices.update(booster)
        elif self._has_open_groups:
            feature_prices = self._compute_lazy_prices(booster, round_number)
            booster.reset_parameter({"cegb_penalty_feature_lazy": feature_prices.tolist()})

    def _compute_lazy_prices(self, booster: lgb.Booster, round_number: int) -> Array:
        """Compute the price of each feature: its own, and the mean price that rows owe its group.

        The mean is over the rows that lack the feature.
        """
        costs = self.prices.costs
        trees = TreeEnsemble.from_lightgbm(booster, start_iteration=round_number, num_iteration=1)
        self._acquired |= trees.visited_features(self._x)
        n_rows_without_feature = (~self._acquired).sum(axis=0)
        has_group = costs.group >= 0
        n_rows_without_group = np.array(
            [
                # a feature also pays the groups that its group requires
                (~self._acquired[:, has_group & is_paid[costs.group]].any(axis=1)).sum()
                for is_paid in costs.is_paid_with.T
            ]
        )
        self._has_open_groups = bool(np.any(n_rows_without_group))
        # own + sum of shared * (rows that lack the group) / (rows that lack the feature)
        price_owed_to_group = costs.is_paid_with @ (costs.shared * n_rows_without_group)
        price_owed_for_groups = np.append(price_owed_to_group, 0.0)[costs.group]
        feature_prices = costs.own + price_owed_for_groups / np.maximum(n_rows_without_feature, 1)
        return np.asarray(self.price_factor * feature_prices, np.float64)
