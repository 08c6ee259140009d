"""Charges of a split while trees grow: the three penalties of CEGB, and their traps in LightGBM.

CEGB (NIPS 2017, equation 13) charges a split of a node with the rows ``I_p`` on feature ``m`` ::

    |I_p| alpha_m + gamma_m (1 - D_m) + sum over i in I_p of beta_m (1 - C_im)

for its evaluation, for the first use of the feature by any tree (``D_m = 1`` once there was one:
coupled), and for every row that has not acquired the feature before (``C_im``: lazy). The paper has
one ``alpha``, and prices of splits by feature in section 5.2.

LightGBM has all three, with one ``alpha``. It has no shared price of a group, but takes new prices
between rounds:

- coupled: a feature carries its group's shared price until a member is in use;
- lazy: rows differ in whether they have touched a group. Among the rows that lack the feature, some
  share has not touched its group. The feature's price is its own plus that share of the shared
  price. That is the full price at the start, nothing of the shared price once all rows have touched
  the group, and right on average in between. Prices stand still within one round, so two members
  may both pay.

The charges of instances after the fit are exact in either case
(:meth:`gatewise.costs.FeatureCosts.per_instance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.boosting import FirstUsePrices

Accounting = Literal["lazy", "coupled"]
Array = NDArray[np.float64]

MAX_LAZY_BITS = 2**31
"""LightGBM's lazy penalty keeps a bit for each row and feature, counted in a signed int32."""


def check_lazy_size(n_rows: int, n_features: int) -> None:
    """Refuse tables that LightGBM's lazy penalty counts wrongly without an error."""
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
    split: float | Array = 0.0  # ``alpha``: price of a split that a row passes, or by feature
    coupled: Array | None = None  # (n_features,): ``gamma`` in addition to lazy prices

    @classmethod
    def of_settings(
        cls,
        costs: FeatureCosts,
        accounting: Accounting,
        split: float | Sequence[float],
        coupled: Sequence[float] | None,
    ) -> SplitPrices:
        """Check prices by feature and bring them to the features of the costs."""
        if coupled is not None and accounting == "coupled":
            raise InputError("coupled_costs are prices in addition to lazy ones: accounting='lazy'")
        by_feature = None
        if coupled is not None:
            by_feature = _by_feature("coupled_costs", coupled, costs.n_features)
        if isinstance(split, int | float | np.number):
            return cls(costs, accounting, float(split), by_feature)
        prices = _by_feature("penalty_split", split, costs.n_features)
        if (prices == prices[0]).all():
            return cls(costs, accounting, float(prices[0]), by_feature)
        return cls(costs, accounting, prices, by_feature)

    @property
    def has_split_prices_by_feature(self) -> bool:
        """Whether splits have prices by feature, which LightGBM lacks."""
        return isinstance(self.split, np.ndarray)

    def take(self, features: NDArray[np.intp]) -> SplitPrices:
        """Restrict split prices to some columns, for trees that were cut down to these columns."""
        if not isinstance(self.split, np.ndarray):
            return self
        return replace(self, split=self.split[features])

    def evaluation(self, trees: TreeEnsemble, x: NDArray[np.float32]) -> Array:
        """Price of the splits that each row passes (equation 6), shape (n,)."""
        if not isinstance(self.split, np.ndarray):
            return np.asarray(self.split * trees.splits_passed(x), np.float64)
        # price of the path to each node: a parent's index is below its children's
        path_price = np.zeros(trees.n_nodes)
        for node, parent in enumerate(trees.parent):
            if parent >= 0:
                path_price[node] = path_price[parent] + self.split[trees.feature[parent]]
        leaves, _ = trees.first_visits(x)
        return np.asarray(path_price[leaves].sum(axis=0))

    def coupled_price(self, used: NDArray[np.intp]) -> float:
        """Sum of the coupled prices of features that some tree uses."""
        return 0.0 if self.coupled is None else float(self.coupled[used].sum())


def _by_feature(name: str, prices: Sequence[float], n_features: int) -> Array:
    """Check prices by feature."""
    values = np.asarray(prices, np.float64)
    if values.shape != (n_features,) or not (np.isfinite(values) & (values >= 0.0)).all():
        raise InputError(f"{name} must hold {n_features} numbers of at least 0, one per feature")
    return values


class Charge:
    """The penalties of one fit, and how they change from round to round.

    A unit of cost counts as ``strength / (mean price of a feature)`` nats of mean loss, so that
    `strength` is the mean loss that a feature of mean price must save. LightGBM's gain is twice the
    decrease of the summed loss, hence the factor 2 in `factor`. `params` are LightGBM's at the
    start, and empty where nothing is charged.
    """

    def __init__(self, prices: SplitPrices, strength: float, x: NDArray[np.float32]) -> None:
        costs = prices.costs
        unit = costs.total / costs.n_features or 1.0
        self.prices = prices
        self.factor = 2.0 * strength / unit
        self._x = x
        self._groups_open = bool(costs.shared.any()) and strength > 0

    @cached_property
    def _first_uses(self) -> FirstUsePrices | None:
        """Coupled prices of features and groups, where accounting is coupled."""
        if self.prices.accounting == "lazy":
            return None
        return FirstUsePrices(self.prices.costs, self.factor * len(self._x))

    @cached_property
    def params(self) -> dict[str, Any]:
        """LightGBM's parameters at the start of the fit."""
        params: dict[str, Any] = {}
        lazy = self.factor * self.prices.costs.alone
        if self._first_uses is not None:
            params |= self._first_uses.params
        elif lazy.any():
            params["cegb_penalty_feature_lazy"] = lazy.tolist()
        coupled = self.prices.coupled
        if coupled is not None and (self.factor * coupled).any():
            # a mean over rows of gamma * factor is a sum of n * gamma * factor
            params["cegb_penalty_feature_coupled"] = (self.factor * len(self._x) * coupled).tolist()
        if not self.prices.has_split_prices_by_feature and self.factor * self.prices.split > 0:
            params["cegb_penalty_split"] = self.factor * self.prices.split
        if params:
            params["cegb_tradeoff"] = 1.0
        return params

    @cached_property
    def _acquired(self) -> NDArray[np.bool_]:
        """Features that each row has acquired, kept up to date by :meth:`after`."""
        return np.zeros(self._x.shape, np.bool_)

    def after(self, booster: lgb.Booster, round_number: int) -> None:
        """Update the prices of groups after round `round_number`, counted from 0."""
        if self._first_uses is not None:
            self._first_uses.after(booster)
        elif self._groups_open:
            price = self._lazy_prices(booster, round_number)
            booster.reset_parameter({"cegb_penalty_feature_lazy": price.tolist()})

    def _lazy_prices(self, booster: lgb.Booster, round_number: int) -> Array:
        """Own price, and the share of the group's price that a row without the feature owes."""
        costs = self.prices.costs
        trees = TreeEnsemble.from_lightgbm(booster, start_iteration=round_number, num_iteration=1)
        self._acquired |= trees.visited(self._x)
        n_lacking = (~self._acquired).sum(axis=0)
        n_untouched = [
            (~self._acquired[:, costs.group == g].any(axis=1)).sum()
            for g in range(len(costs.shared))
        ]
        self._groups_open = bool(np.any(n_untouched))
        # own + shared * (rows that have not touched the group) / (rows that lack the feature)
        group_price_owed = np.append(costs.shared_alone * n_untouched, 0.0)[costs.group]
        price = costs.own + group_price_owed / np.maximum(n_lacking, 1)
        return np.asarray(self.factor * price, np.float64)
