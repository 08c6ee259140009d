"""Costs of high-cost models that do not read all their features for every row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import AdaptLin, FeatureCosts

COSTS = FeatureCosts(np.linspace(0.5, 2.0, 8))
SETTINGS = {"penalties": (0.3, 0.05), "p_full": (0.3,), "n_starts": 0, "max_alternations": 20}


def rows(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 0] + 2 * x[:, 1] * np.sign(x[:, 2]) + 0.1 * rng.normal(size=n) > 0).astype(int)


def on_paths(forest, row):
    """Features that a row meets in scikit-learn's own trees."""
    met = set()
    for estimator in forest.estimators_:
        tree, h = estimator.tree_, 0
        while tree.children_left[h] >= 0:
            met.add(int(tree.feature[h]))
            goes_left = row[tree.feature[h]] <= tree.threshold[h]
            h = (tree.children_left if goes_left else tree.children_right)[h]
    return met


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(5, max_depth=6, random_state=0).fit(*rows(600, 0))


@pytest.fixture(scope="module")
def by_paths(forest):
    model = AdaptLin(forest, feature_costs=COSTS, accounting="paths", random_state=0, **SETTINGS)
    return model.fit(*rows(300, 1), validation=rows(200, 2))


def halfway(system):
    """The system at the point that offloads about half of the rows."""
    point = min(system.frontier_.points, key=lambda p: abs(p.offload_rate - 0.5))
    assert 0.1 < point.offload_rate < 0.9
    return system.at(budget=point.cost)


def test_a_forest_as_high_cost_model_is_charged_by_paths(forest, by_paths):
    x, _ = rows(200, 2)
    for point in by_paths.frontier_.points:
        system = by_paths.at(budget=point.cost)
        (stage,) = system.stages_
        exits = system.exit_stage(x)
        own = set(stage.features.tolist())
        for accounting in ("paths", "paper-paths"):
            bill = []
            for row, left in zip(x, exits, strict=True):
                acquired = own if left == 0 or accounting == "paths" else set()
                acquired = acquired | (on_paths(forest, row) if left == 1 else set())
                bill.append(COSTS.price(sorted(acquired)))
            np.testing.assert_allclose(system.cost(x, accounting), bill)
        # the frontier, and the cost without another word, are of that accounting
        np.testing.assert_allclose(system.cost(x), system.cost(x, "paths"))
        assert point.cost == pytest.approx(system.cost(x).mean())
        np.testing.assert_allclose(COSTS.per_instance(system.acquired(x)), system.cost(x))
    offloading = halfway(by_paths)
    assert (offloading.cost(x, "union") >= offloading.cost(x)).all()
    assert offloading.cost(x, "union").mean() > offloading.cost(x).mean()


def test_a_cascade_as_high_cost_model_is_charged_its_own_cost(by_paths):
    """Remark 2 of Adapt: a new pair approximates the composite system."""
    inner = halfway(by_paths)
    outer = AdaptLin(inner, feature_costs=COSTS, accounting="paths", random_state=0, **SETTINGS)
    outer.fit(*rows(300, 3), validation=rows(200, 4))
    x, _ = rows(200, 4)
    n_offloaded = 0
    for point in outer.frontier_.points:
        system = outer.at(budget=point.cost)
        offloaded = system.exit_stage(x) == 1
        (stage,) = system.stages_
        acquired = np.zeros(x.shape, bool)
        acquired[:, stage.features] = True
        acquired[offloaded] |= inner.acquired(x)[offloaded]
        np.testing.assert_allclose(system.cost(x), COSTS.per_instance(acquired))
        assert point.cost == pytest.approx(system.cost(x).mean())
        np.testing.assert_allclose(
            system.cost(x, "paper-paths")[offloaded], inner.cost(x)[offloaded]
        )
        n_offloaded += offloaded.sum()
    assert n_offloaded > 50
    # answers of offloaded rows are the inner system's
    np.testing.assert_array_equal(system.predict(x)[offloaded], inner.predict(x)[offloaded])


def test_other_models_are_charged_all_that_they_read():
    f0 = LogisticRegression().fit(*rows(300, 0))
    model = AdaptLin(f0, feature_costs=COSTS, random_state=0, **SETTINGS)
    model.fit(*rows(300, 1), validation=rows(200, 2))
    x, _ = rows(200, 2)
    system = model.at(max_loss=0.0)
    for paths, whole in (("paths", "union"), ("paper-paths", "paper")):
        np.testing.assert_allclose(system.cost(x, paths), system.cost(x, whole))
    assert (system.acquired(x)[system.exit_stage(x) == 1]).all()
    with pytest.raises(InputError, match="accounting must be one of"):
        model.cost(x, "own")
