"""``max_bytes``: the shape of stages is searched for the bytes given, not fixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import gatewise as gw
from gatewise.acquisition import exit_costs
from gatewise.decision import ALWAYS_STOP
from gatewise.errors import TooLargeError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble, byte_leaves
from gatewise.operating_point import OperatingPoint
from gatewise_training.learners.boosting import fit_boosting
from gatewise_training.learners.model_families import cross_fitted_stage
from gatewise_training.learners.stage_bounds import (
    MAX_STEP_OF_FEW_TREES,
    Bounds,
    ThresholdGrid,
    TreeShape,
    grid_of,
    shaped,
)
from gatewise_training.operating_points.packed_size import packed_sizes
from tests.support.budgeted_methods import ready, table
from tests.support.fit_problems import problem_of


def chessboard(n, seed=0):
    """A rule that few leaves cannot hold."""
    x = np.random.default_rng(seed).random((n, 2)).astype(np.float32)
    return x, np.floor(x * 6).sum(axis=1).astype(int) % 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), most=st.integers(1, 12), missing=st.booleans())
def test_trees_on_a_grid_decide_rows_as_their_rounded_values(seed, most, missing) -> None:
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(80, 3)), int(rng.integers(0, 3))).astype(np.float32)
    x[rng.random(x.shape) < 0.1 * missing] = np.nan
    y = (np.nan_to_num(x).sum(axis=1) > 0).astype(int)
    grid = ThresholdGrid.of_table(x, most)
    free, _ = fit_boosting(grid.rounded(x), y, 2, rounds=8)
    trees = grid.snapped(free)
    others = np.concatenate([x, 3 * rng.normal(size=(80, 3)).astype(np.float32), x * 1e6])
    np.testing.assert_array_equal(trees.margins(others), free.margins(grid.rounded(others)))
    for k in range(3):
        used, edges = np.unique(trees.threshold[trees.feature == k]), grid.edges[k]
        assert len(used[(used >= edges[0]) & (used < edges[-1])]) <= most
        assert len(used) <= most + 2


def test_a_grid_too_coarse_is_not_used() -> None:
    fine = np.random.default_rng(0).random((400, 16)).astype(np.float32)
    assert grid_of(fine, 8 * 1024) is None
    thresholds, room = grid_of(fine, 64 * 1024)
    assert thresholds == 128
    assert room == 8 * 1024
    coarse = np.floor(fine * 16)
    assert grid_of(coarse, 8 * 1024) == (16, 4 * 15 * 16)


def test_stages_share_thresholds_and_each_part_is_bounded() -> None:
    """Two stages of the same tests: their thresholds are there once."""
    trees = replace(tree(*[0, 1, 2] * 20), threshold=np.float32([*range(60), *[0] * 61]))
    stage = Stage.from_model(trees, "sigmoid")
    sizes = packed_sizes((stage, replace(stage)))
    one, both = sizes.total([0]), sizes.total([0, 1])
    assert one == sizes.total([1]) == sizes.by_stage[0]
    (floats, _), (ranks, needs), _ = sizes.forms
    assert needs.all()
    assert needs.shape == (2, 60)
    assert both == min(floats.sum(), ranks.sum() + 4 * 60) < 2 * one
    assert sizes.total([], free_thresholds=9) == 0


@pytest.mark.parametrize("size", [500, 4_000, 64_000])
def test_every_shape_that_is_tried_is_of_a_stage_that_fits(size) -> None:
    x, y = chessboard(400)
    problem = problem_of(x, y)
    families = ("boosting", "linear")
    kinds = shaped(families, Bounds(max_bytes=size), 400, 2, 2)
    assert len(kinds) > 2
    for family, bounds in list(kinds.values())[:4]:
        stage, _ = cross_fitted_stage(problem.plan, family, np.arange(2), 2, 0, bounds)
        assert bounds.admit(stage)
    unbound = Bounds(bins=9)  # without a bound of bytes there is one shape
    assert shaped(families, unbound, 400, 2, 2) == {f: (f, unbound) for f in families}


def test_boosted_stages_fill_their_bytes() -> None:
    """Rounds go on until the tables are full; all but one round of the last fit."""
    x, y = chessboard(2000)
    problem = problem_of(np.round(x, 2), y)
    for size in (700, 2_000):
        bounds = Bounds(max_bytes=size, shape=TreeShape(8, 0.4))
        stage, _ = cross_fitted_stage(problem.plan, "boosting", np.arange(2), 2, 0, bounds)
        taken = packed_sizes((stage,)).total([0])
        assert taken <= size
        assert taken > size - taken / (stage.n_trees - 1) - 16


def test_leaves_of_a_rare_class_take_a_byte() -> None:
    """A Newton step of a class of 12 rows in 1,200 would be hundreds of times the others."""
    x, _ = chessboard(1200)
    y = np.where(np.arange(1200) % 100 == 0, 2, (x[:, 0] > x[:, 1]).astype(int))
    problem = problem_of(x, y)
    bounds = Bounds(max_bytes=6_000, shape=TreeShape(16, 0.4))
    stage, outputs = cross_fitted_stage(problem.plan, "boosting", np.arange(2), 3, 0, bounds)
    leaves = stage.model.value[stage.model.feature < 0]
    assert byte_leaves(leaves) is not None
    assert np.abs(leaves).max() <= 0.4 * MAX_STEP_OF_FEW_TREES + 0.01
    validation_labels = problem.plan.y[problem.plan.validation_rows]
    frequent = validation_labels < 2
    assert np.mean(outputs.argmax(axis=1)[frequent] == validation_labels[frequent]) > 0.95


@pytest.mark.slow
def test_large_trees_are_found_where_small_trees_fail() -> None:
    x, y = chessboard(2000)
    x_test, y_test = chessboard(2000, seed=1)
    f0 = RandomForestClassifier(20, random_state=0).fit(x, y)
    system = gw.StagedCascade(
        f0, max_bytes=3000, n_stages=1, families=("boosting",), max_loss=1.0, random_state=0
    ).fit(x, y, validation=chessboard(800, seed=2))
    stages = [stage for chain in system.chains_ for stage in chain]
    assert max((s.model.n_nodes + s.n_trees) / 2 / s.n_trees for s in stages) > 12  # leaves
    assert max(np.mean((s.margins(x_test)[:, 0] > 0) == y_test) for s in stages) > 0.8


def tree(*features: int) -> TreeEnsemble:
    """A tree that tests these features one after another, each where the last was above 0."""
    n = len(features)
    inner, leaf = np.arange(n), np.full(n + 1, -1)
    return TreeEnsemble(
        np.int32([*features, *leaf]), np.zeros(2 * n + 1, np.float32),
        np.int32([*(n + inner), *leaf]), np.int32([*(inner + 1)[:-1], 2 * n, *leaf]),
        np.zeros(2 * n + 1, bool), np.ones((2 * n + 1, 1), np.float32), np.int32([0]),
        np.int32([0]), np.zeros(1, np.float32), 3,
    )  # fmt: skip


@pytest.mark.parametrize(("acquisition", "saved"), [("stage", 30.0), ("node", 0.0)])
def test_a_stage_left_out_saves_no_more_than_rows_acquired_for_it(acquisition, saved) -> None:
    """Node by node no row went beyond feature 0, which the stage that is kept reads too."""
    rows = -np.ones((4, 3), np.float32)
    chain = tuple(
        Stage.from_model(tree(*features), "sigmoid", acquisition=acquisition)
        for features in ((0, 1, 2), (0,))
    )
    system = gw.StagedCascade(max_bytes=1000)
    system.high_cost_model_, system.feature_costs_ = None, gw.FeatureCosts([1.0, 10.0, 20.0])
    system.n_features_in_, system.classes_ = 3, np.array([0, 1])
    system.max_bytes_, system.chains_ = 1000, (chain,)
    point = OperatingPoint((None, ALWAYS_STOP), 1.0 + saved, 0.9, 0.0, exit_shares=(0.0, 1.0, 0.0))
    system._activate(point)
    assert system.operating_point_.thresholds == (ALWAYS_STOP,)
    assert system.operating_point_.cost == pytest.approx(1.0)
    assert exit_costs(
        system.feature_costs_, [stage.acquired(rows) for stage in system.stages_]
    ).max() == pytest.approx(1.0)


@pytest.mark.slow
def test_given_stages_count_in_max_bytes() -> None:
    X, _, y, _ = table()
    first = RandomForestClassifier(20, max_leaf_nodes=8, random_state=0).fit(X.to_numpy(), y)
    system = ready("staged", X, y, first_stages=[first], max_bytes=6000).fit(X, y)
    assert all(p.bytes <= 6000 for p in system.operating_points_)
    assert f"{system.operating_point_.bytes} bytes" in system.summary()


@pytest.mark.slow
def test_pairs_keep_their_model_within_bytes_or_name_its_size() -> None:
    X, _, y, _ = table()
    small, large = (LogisticRegression(C=c, max_iter=5000).fit(X, y) for c in (0.01, 1.0))
    pair = gw.PairCascade(low_cost_model=small, high_cost_model=large, random_state=0).fit(X, y)
    size = pair.operating_point_.bytes
    assert size > 0
    assert pair.at(max_bytes=size, max_loss=0.5).operating_point_.bytes <= size
    with pytest.raises(TooLargeError) as moved:
        pair.at(max_bytes=size - 1, max_loss=0.5)
    with pytest.raises(TooLargeError) as fitted:
        pair.set_params(max_bytes=size - 1).fit(X, y)
    assert moved.value.smallest == fitted.value.smallest == size
