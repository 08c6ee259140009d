"""Costs of high-cost models that do not read all their features for every row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import AdaptLin, FeatureCosts

COSTS = FeatureCosts(np.linspace(0.5, 2.0, 8))
SETTINGS = {"penalties": (0.3, 0.05), "p_full": (0.3,), "n_starts": 0}


def draw_rows(n, seed):
    """Draw rows and labels that depend on the product of two features."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 0] + 2 * x[:, 1] * np.sign(x[:, 2]) + 0.1 * rng.normal(size=n) > 0).astype(int)


def list_features_on_paths(forest, row):
    """List the features that a row tests in scikit-learn's own trees."""
    features = set()
    for estimator in forest.estimators_:
        tree = estimator.tree_
        node = 0
        while tree.children_left[node] >= 0:
            features.add(int(tree.feature[node]))
            goes_left = row[tree.feature[node]] <= tree.threshold[node]
            node = (tree.children_left if goes_left else tree.children_right)[node]
    return features


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(5, max_depth=6, random_state=0).fit(*draw_rows(600, 0))


@pytest.fixture(scope="module")
def paths_system(forest):
    model = AdaptLin(forest, feature_costs=COSTS, accounting="paths", random_state=0, **SETTINGS)
    return model.fit(*draw_rows(300, 1), validation=draw_rows(200, 2))


def choose_half_offloaded(system):
    """Set a system to the operating point that offloads about half of the rows."""
    point = min(system.frontier_.points, key=lambda point: abs(point.offload_rate - 0.5))
    assert 0.1 < point.offload_rate < 0.9  # there are rows of both kinds
    return system.at(budget=point.cost)


@pytest.mark.slow
def test_forest_as_high_cost_model_is_charged_by_paths(forest, paths_system):
    x, _ = draw_rows(200, 2)
    for point in paths_system.frontier_.points:
        system = paths_system.at(budget=point.cost)
        (stage,) = system.stages_
        exits = system.exit_stage(x)
        stage_features = set(stage.features.tolist())
        for accounting in ("paths", "paper-paths"):
            row_costs = []
            for row, exit_stage in zip(x, exits, strict=True):
                acquired = set()
                if exit_stage == 0 or accounting == "paths":
                    acquired |= stage_features
                if exit_stage == 1:
                    acquired |= list_features_on_paths(forest, row)
                row_costs.append(COSTS.price(sorted(acquired)))
            np.testing.assert_allclose(system.cost(x, accounting), row_costs)
        # the frontier and the default cost use the accounting of the system
        np.testing.assert_allclose(system.cost(x), system.cost(x, "paths"))
        assert point.cost == pytest.approx(system.cost(x).mean())
        np.testing.assert_allclose(COSTS.instance_costs(system.acquired(x)), system.cost(x))
    system_at_half = choose_half_offloaded(paths_system)
    assert (system_at_half.cost(x, "union") >= system_at_half.cost(x)).all()
    assert system_at_half.cost(x, "union").mean() > system_at_half.cost(x).mean()


@pytest.mark.slow
def test_cascade_as_high_cost_model_is_charged_its_own_cost(paths_system):
    """A new pair approximates the composite system (remark 2 of Adapt)."""
    inner_system = choose_half_offloaded(paths_system)
    outer_system = AdaptLin(
        inner_system, feature_costs=COSTS, accounting="paths", random_state=0, **SETTINGS
    )
    outer_system.fit(*draw_rows(300, 3), validation=draw_rows(200, 4))
    x, _ = draw_rows(200, 4)
    n_offloaded = 0
    for point in outer_system.frontier_.points:
        system = outer_system.at(budget=point.cost)
        is_offloaded = system.exit_stage(x) == 1
        (stage,) = system.stages_
        acquired = np.zeros(x.shape, bool)
        acquired[:, stage.features] = True
        acquired[is_offloaded] |= inner_system.acquired(x)[is_offloaded]
        np.testing.assert_allclose(system.cost(x), COSTS.instance_costs(acquired))
        assert point.cost == pytest.approx(system.cost(x).mean())
        np.testing.assert_allclose(
            system.cost(x, "paper-paths")[is_offloaded], inner_system.cost(x)[is_offloaded]
        )
        n_offloaded += is_offloaded.sum()
    assert n_offloaded > 50  # the comparison above was not empty
    # the inner system predicts offloaded rows
    np.testing.assert_array_equal(
        system.predict(x)[is_offloaded], inner_system.predict(x)[is_offloaded]
    )


@pytest.mark.slow
def test_other_models_are_charged_all_their_features():
    high_cost_model = LogisticRegression().fit(*draw_rows(300, 0))
    model = AdaptLin(high_cost_model, feature_costs=COSTS, random_state=0, **SETTINGS)
    model.fit(*draw_rows(300, 1), validation=draw_rows(200, 2))
    x, _ = draw_rows(200, 2)
    system = model.at(max_loss=0.0)
    for by_paths, by_model in (("paths", "union"), ("paper-paths", "paper")):
        np.testing.assert_allclose(system.cost(x, by_paths), system.cost(x, by_model))
    assert (system.acquired(x)[system.exit_stage(x) == 1]).all()
    with pytest.raises(InputError, match="accounting must be one of"):
        model.cost(x, "own")
