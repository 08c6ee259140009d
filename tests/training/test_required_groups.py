"""Prices of groups that other groups require are charged once, by every method."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.models.trees import TreeEnsemble
from gatewise_training import AdaptGBRT, BudgetPrune, CEGBClassifier, GreedyMiser

pytestmark = pytest.mark.slow  # fits

#: Two tests on one blood sample, and a feature without a group.
COSTS_OF_ONE_GROUP = FeatureCosts(
    [1.0, 1.0, 4.0], group=["blood", "blood", None], shared={"blood": 100.0}
)

#: The same costs: the groups of the tests are free, and both require the sample.
COSTS_OF_REQUIRED_GROUPS = FeatureCosts(
    [1.0, 1.0, 4.0],
    group=["a", "b", None],
    shared={"sample": 100.0},
    requires={"a": "sample", "b": "sample"},
)


def draw_rows(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] + 0.3 * x[:, 2] + 0.3 * rng.normal(size=n) > 0).astype(int)


def list_trees(system) -> list[TreeEnsemble]:
    return [stage.model for chain in system.chains_ for stage in chain]


BOOSTED = {"n_rounds": 15, "penalties": (0.05, 0.01)}
SPLIT_PRICES = {"penalty_split": [0.01, 0.02, 0.01]}
SYSTEMS = {
    "lazy": CEGBClassifier(**BOOSTED),
    "coupled": CEGBClassifier(accounting="coupled", **BOOSTED),
    "lazy with prices of splits": CEGBClassifier(**BOOSTED, **SPLIT_PRICES),
    "coupled with prices of splits": CEGBClassifier(
        accounting="coupled", **BOOSTED, **SPLIT_PRICES
    ),
    "greedy-miser": GreedyMiser(**BOOSTED),
    "adapt-gbrt": AdaptGBRT(p_full=(0.3,), **BOOSTED),
    "budget-prune": BudgetPrune(growth="cost-aware", mu=0.2, n_estimators=4, n_points=4),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_required_groups_cost_as_much_as_one_group(name):
    system = SYSTEMS[name]
    x, y = draw_rows()
    assert COSTS_OF_REQUIRED_GROUPS.price([0, 1]) == COSTS_OF_ONE_GROUP.price([0, 1]) == 102.0
    system.set_params(max_loss=0.0, random_state=0)
    systems = [
        system.set_params(feature_costs=costs).fit(x, y) and list_trees(system)
        for costs in (COSTS_OF_ONE_GROUP, COSTS_OF_REQUIRED_GROUPS)
    ]
    assert len(systems[0]) == len(systems[1])
    assert any(model.n_trees > 1 for model in systems[0])
    for model, model_of_required_groups in zip(*systems, strict=True):
        for array in ("feature", "threshold", "value"):
            np.testing.assert_array_equal(
                getattr(model, array), getattr(model_of_required_groups, array), err_msg=array
            )
