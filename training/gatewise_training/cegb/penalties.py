"""Charges of a split while trees grow: LightGBM's three penalties of CEGB, and their traps.

CEGB (NIPS 2017, equation 13) charges a split of a node of n rows ``n alpha`` for its evaluation,
``beta_m`` for every row that has not acquired feature m before (lazy), and ``gamma_m`` for the
first use of feature m by any row (coupled). LightGBM knows no shared price of a group, but takes
new prices between rounds:

- coupled: a feature carries its group's shared price until a member is in use;
- lazy: rows differ in whether they have touched a group. A feature's price is its own and the
  shared price times the share, among the rows that lack the feature, of those that have not
  touched its group. At the start that is the full price, once all rows have touched the group
  nothing, and in between right on average. Within one round prices stand still, so two members
  may both pay.

What instances are charged in the end is exact in either case
(:meth:`gatewise.costs.FeatureCosts.per_instance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.boosting import FirstUsePrices

Accounting = Literal["lazy", "coupled"]

HARMLESS = frozenset({
    "bin_construct_sample_cnt", "extra_seed", "extra_trees", "feature_fraction",
    "feature_fraction_seed", "lambda_l1", "lambda_l2", "max_bin", "max_delta_step",
    "min_data_in_bin", "min_data_in_leaf", "min_gain_to_split", "min_sum_hessian_in_leaf",
    "monotone_constraints", "path_smooth",
})  # fmt: skip
"""LightGBM parameters that leave the penalties right; all others are refused by name.

Left out with reason: ``boosting`` (dart and rf rescale trees that have been paid for),
``categorical_feature``, ``linear_tree`` and ``zero_as_missing`` (no form in the flat arrays),
``feature_fraction_bynode`` and ``interaction_constraints`` (a first use re-opens splits that a
leaf was not to consider), ``forcedsplits_filename`` (splits without a charge).
"""

SAMPLING = {
    "bagging_fraction": 1.0,
    "pos_bagging_fraction": 1.0,
    "neg_bagging_fraction": 1.0,
    "bagging_freq": 0,
    "data_sample_strategy": "bagging",
}
"""LightGBM's settings that sample rows, at the values with which they do not."""

ROW_SAMPLING = frozenset(SAMPLING) | {"top_rate", "other_rate", "bagging_seed"}
"""LightGBM's own sampling of rows: right with coupled prices, silently wrong with lazy ones."""

MAX_LAZY_BITS = 2**31
"""LightGBM's lazy penalty keeps a bit for each row and feature, counted in a signed int32."""


def check_params(
    params: Mapping[str, Any] | None, accounting: Accounting, n_rows: int, n_features: int
) -> None:
    """Refuse LightGBM settings under which prices would be charged wrongly."""
    for name in params or {}:
        if name not in HARMLESS | ROW_SAMPLING:
            raise InputError(
                f"LightGBM parameter {name!r} is not known to leave the prices right; "
                f"lightgbm_params takes {', '.join(sorted(HARMLESS))} and, with "
                "accounting='coupled', LightGBM's sampling of rows"
            )
    if accounting == "lazy":
        _check_lazy(params or {}, n_rows, n_features)


def _check_lazy(params: Mapping[str, Any], n_rows: int, n_features: int) -> None:
    """Refuse fits for which LightGBM's lazy penalty is silently wrong."""
    if n_rows * n_features >= MAX_LAZY_BITS:
        raise InputError(
            f"accounting='lazy': {n_rows} rows times {n_features} features are more than "
            f"LightGBM's lazy penalty can count ({MAX_LAZY_BITS - 1}); give fewer rows or features"
        )
    for name, harmless in SAMPLING.items():
        if params.get(name, harmless) != harmless:
            raise InputError(
                f"accounting='lazy': LightGBM's lazy penalty is wrong with {name}="
                f"{params[name]!r}; rows must not be sampled"
            )


class Charge:
    """The penalties of one fit, and what changes in them from round to round.

    `penalty_split` is the price of one split for one row that passes it, in the unit of the
    feature costs (alpha); `strength` the mean loss that a feature of mean price must save.
    LightGBM's gain is twice the drop of the summed loss, hence the factor 2 in `params`, which
    are LightGBM's at the start, and empty where nothing is charged.
    """

    def __init__(
        self,
        costs: FeatureCosts,
        accounting: Accounting,
        penalty_split: float,
        strength: float,
        x: NDArray[np.float32],
    ) -> None:
        unit = costs.total / costs.n_features or 1.0
        self._costs, self._x = costs, x
        each = 2.0 * strength / unit
        self._coupled = FirstUsePrices(costs, each * len(x)) if accounting == "coupled" else None
        self._factor, self._open = each, bool(costs.shared.any()) and strength > 0
        self.params: dict[str, Any] = {}
        if self._coupled is not None:
            self.params |= self._coupled.params
        elif (each * costs.alone).any():
            self.params["cegb_penalty_feature_lazy"] = (each * costs.alone).tolist()
        if each * penalty_split > 0:
            self.params["cegb_penalty_split"] = each * penalty_split
        if self.params:
            self.params["cegb_tradeoff"] = 1.0
        if self._coupled is None and self._open:
            self._acquired = np.zeros(x.shape, np.bool_)
            self._groups = [costs.group == g for g in range(len(costs.shared))]

    def after(self, booster: lgb.Booster, round_: int) -> None:
        """Renew the prices of priced groups after a round, numbered from 0."""
        if self._coupled is not None:
            self._coupled.after(booster)
        elif self._open:
            price = self._lazy_prices(booster, round_)
            booster.reset_parameter({"cegb_penalty_feature_lazy": price.tolist()})

    def _lazy_prices(self, booster: lgb.Booster, round_: int) -> NDArray[np.float64]:
        """Own price, and of the shared price what a row that lacks the feature owes on average."""
        trees = TreeEnsemble.from_lightgbm(booster, start_iteration=round_, num_iteration=1)
        self._acquired |= trees.visited(self._x)
        lacking = (~self._acquired).sum(axis=0)
        untouched = [(~self._acquired[:, members].any(axis=1)).sum() for members in self._groups]
        self._open = bool(np.any(untouched))
        owed = np.append(self._costs.shared_alone * untouched, 0.0)[self._costs.group]
        price = self._costs.own + owed / np.maximum(lacking, 1)
        return np.asarray(self._factor * price, np.float64)
