"""Test that ``max_bytes`` bounds the stages and chooses the shape of their trees."""

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
    TreeShape,
    models_to_try,
)
from gatewise_training.learners.threshold_grid import ThresholdGrid, choose_grid_size
from gatewise_training.operating_points.packed_size import packed_sizes
from tests.support.budgeted_methods import load_table, make_method
from tests.support.fit_problems import make_problem

pytestmark = pytest.mark.usefixtures("two_folds")


def draw_chessboard(n, seed=0):
    """Draw rows of two features with a label that only many leaves can represent."""
    x = np.random.default_rng(seed).random((n, 2)).astype(np.float32)
    return x, np.floor(x * 6).sum(axis=1).astype(int) % 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), max_thresholds=st.integers(1, 12), has_missing=st.booleans())
def test_trees_on_a_grid_score_rows_as_the_free_trees_score_rounded_rows(
    seed, max_thresholds, has_missing
) -> None:
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(80, 3)), int(rng.integers(0, 3))).astype(np.float32)
    x[rng.random(x.shape) < 0.1 * has_missing] = np.nan
    y = (np.nan_to_num(x).sum(axis=1) > 0).astype(int)
    grid = ThresholdGrid.of_table(x, max_thresholds)
    free_trees, _ = fit_boosting(grid.round_rows(x), y, 2, max_rounds=8)
    trees = grid.move_thresholds(free_trees)
    unseen_rows = np.concatenate([x, 3 * rng.normal(size=(80, 3)).astype(np.float32), x * 1e6])
    np.testing.assert_array_equal(
        trees.margins(unseen_rows), free_trees.margins(grid.round_rows(unseen_rows))
    )
    for column in range(3):
        thresholds = np.unique(trees.threshold[trees.feature == column])
        grid_thresholds = grid.thresholds[column]
        is_inner = (thresholds >= grid_thresholds[0]) & (thresholds < grid_thresholds[-1])
        assert np.sum(is_inner) <= max_thresholds
        # two more, on both sides of all numbers, separate NaN from them
        assert len(thresholds) <= max_thresholds + 2


def test_a_too_coarse_grid_is_not_used() -> None:
    fine_table = np.random.default_rng(0).random((400, 16)).astype(np.float32)
    assert (
        choose_grid_size(fine_table, 8 * 1024) is None
    )  # 16 thresholds for each feature are too few
    # the grid may take an eighth of the bytes: 2048 thresholds of 4 bytes for 16 features
    n_thresholds, grid_bytes = choose_grid_size(fine_table, 64 * 1024)
    assert n_thresholds == 128
    assert grid_bytes == 8 * 1024
    coarse_table = np.floor(fine_table * 16)
    # 16 values of each feature have 15 boundaries between them
    assert choose_grid_size(coarse_table, 8 * 1024) == (16, 4 * 15 * 16)


def test_stages_with_equal_thresholds_share_their_table() -> None:
    """The bytes of two equal stages count their thresholds once."""
    trees = replace(make_tree(*[0, 1, 2] * 20), threshold=np.float32([*range(60), *[0] * 61]))
    stage = Stage.from_model(trees, "sigmoid")
    sizes = packed_sizes((stage, replace(stage)))
    bytes_of_one_stage, bytes_of_two_stages = sizes.total([0]), sizes.total([0, 1])
    assert bytes_of_one_stage == sizes.total([1]) == sizes.by_stage[0]
    (float_bytes, _), (rank_bytes, needs_threshold), _ = sizes.forms
    assert needs_threshold.all()
    assert needs_threshold.shape == (2, 60)
    # 60 shared thresholds of 4 bytes, if the stages have ranks of thresholds in their tables
    expected_bytes = min(float_bytes.sum(), rank_bytes.sum() + 4 * 60)
    assert bytes_of_two_stages == expected_bytes < 2 * bytes_of_one_stage
    # no stages need no thresholds, so none of the free ones saves a byte
    assert sizes.total([], free_thresholds=9) == 0


@pytest.mark.parametrize("max_bytes", [500, 4_000, 64_000])
def test_stages_of_every_tried_shape_fit_the_bytes(max_bytes) -> None:
    x, y = draw_chessboard(400)
    problem = make_problem(x, y)
    families = ("boosting", "linear")
    families_and_bounds = models_to_try(families, Bounds(max_bytes=max_bytes), 400, 2, 2)
    assert len(families_and_bounds) > 2
    for family, bounds in list(families_and_bounds.values())[:4]:
        stage, _ = cross_fitted_stage(problem.split, family, np.arange(2), 2, 0, bounds)
        assert bounds.allows(stage)
    unbounded = Bounds(n_bins=9)  # without max_bytes each family has one shape
    assert models_to_try(families, unbounded, 400, 2, 2) == {
        family: (family, unbounded) for family in families
    }


def test_boosted_stages_fill_their_bytes() -> None:
    """Rounds continue until another round would exceed the bytes."""
    x, y = draw_chessboard(2000)
    problem = make_problem(np.round(x, 2), y)
    for max_bytes in (700, 2_000):
        bounds = Bounds(max_bytes=max_bytes, shape=TreeShape(8, 0.4))
        stage, _ = cross_fitted_stage(problem.split, "boosting", np.arange(2), 2, 0, bounds)
        n_bytes = packed_sizes((stage,)).total([0])
        assert n_bytes <= max_bytes
        # one more tree of about the mean size would not have fitted; the trees differ by a few
        # bytes, so 16 are allowed for
        assert n_bytes > max_bytes - n_bytes / (stage.n_trees - 1) - 16


def test_leaves_of_a_rare_class_fit_in_a_byte() -> None:
    """Without a limit, a Newton step for 12 of 1,200 rows would be hundreds of times larger."""
    x, _ = draw_chessboard(1200)
    y = np.where(np.arange(1200) % 100 == 0, 2, (x[:, 0] > x[:, 1]).astype(int))
    problem = make_problem(x, y)
    bounds = Bounds(max_bytes=6_000, shape=TreeShape(16, 0.4))
    stage, outputs = cross_fitted_stage(problem.split, "boosting", np.arange(2), 3, 0, bounds)
    leaf_values = stage.model.value[stage.model.feature < 0]
    assert byte_leaves(leaf_values) is not None
    # 0.4 is the learning rate; 0.01 is for rounding to bytes
    assert np.abs(leaf_values).max() <= 0.4 * MAX_STEP_OF_FEW_TREES + 0.01
    validation_labels = problem.split.y[problem.split.validation_rows]
    is_frequent = validation_labels < 2
    # the steps of the rare class are bounded, but the frequent classes are separated
    assert np.mean(outputs.argmax(axis=1)[is_frequent] == validation_labels[is_frequent]) > 0.95


@pytest.mark.slow
def test_the_search_finds_large_trees_if_small_trees_fail() -> None:
    x, y = draw_chessboard(2000)
    x_test, y_test = draw_chessboard(2000, seed=1)
    high_cost_model = RandomForestClassifier(20, random_state=0).fit(x, y)
    system = gw.StagedCascade(
        high_cost_model,
        max_bytes=3000,
        n_stages=1,
        families=("boosting",),
        max_loss=1.0,
        random_state=0,
    ).fit(x, y, validation=draw_chessboard(800, seed=2))
    stages = [stage for chain in system.chains_ for stage in chain]
    # a binary tree of n nodes has (n + 1) / 2 leaves
    leaves_per_tree = [
        (stage.model.n_nodes + stage.n_trees) / 2 / stage.n_trees for stage in stages
    ]
    assert max(leaves_per_tree) > 12  # the 36 squares of the chessboard need many leaves in a tree
    accuracies = [np.mean((stage.margins(x_test)[:, 0] > 0) == y_test) for stage in stages]
    assert max(accuracies) > 0.8  # small trees answer as a coin flip


def make_tree(*features: int) -> TreeEnsemble:
    """Make a tree that tests each feature if the previous one was above 0."""
    n = len(features)
    inner_nodes, no_children = np.arange(n), np.full(n + 1, -1)
    return TreeEnsemble(
        np.int32([*features, *no_children]), np.zeros(2 * n + 1, np.float32),
        np.int32([*(n + inner_nodes), *no_children]),
        np.int32([*(inner_nodes + 1)[:-1], 2 * n, *no_children]),
        np.zeros(2 * n + 1, bool), np.ones((2 * n + 1, 1), np.float32), np.int32([0]),
        np.int32([0]), np.zeros(1, np.float32), 3,
    )  # fmt: skip


@pytest.mark.parametrize(("acquisition", "saved_cost"), [("stage", 30.0), ("node", 0.0)])
def test_omitting_a_stage_saves_only_the_features_that_its_rows_acquired(
    acquisition, saved_cost
) -> None:
    """With acquisition by node, rows acquire only feature 0, which the other stage also reads."""
    rows = -np.ones((4, 3), np.float32)
    chain = tuple(
        Stage.from_model(make_tree(*features), "sigmoid", acquisition=acquisition)
        for features in ((0, 1, 2), (0,))
    )
    # set what a fit would set, because a fit would not choose these two stages
    system = gw.StagedCascade(max_bytes=1000)
    system.high_cost_model_, system.feature_costs_ = None, gw.FeatureCosts([1.0, 10.0, 20.0])
    system.n_features_in_, system.classes_ = 3, np.array([0, 1])
    system.max_bytes_, system.chains_ = 1000, (chain,)
    point = OperatingPoint(
        (None, ALWAYS_STOP), 1.0 + saved_cost, 0.9, 0.0, exit_shares=(0.0, 1.0, 0.0)
    )
    system._activate(point)
    assert system.operating_point_.thresholds == (ALWAYS_STOP,)
    assert system.operating_point_.cost == pytest.approx(1.0)
    assert exit_costs(
        system.feature_costs_, [stage.acquired(rows) for stage in system.stages_]
    ).max() == pytest.approx(1.0)


@pytest.mark.slow
def test_max_bytes_includes_given_stages() -> None:
    X, _, y, _ = load_table()
    first_stage = RandomForestClassifier(20, max_leaf_nodes=8, random_state=0).fit(X.to_numpy(), y)
    settings = {"n_stages": 2, "families": ("linear",), "max_bytes": 6000}
    system = make_method("staged", X, y, first_stages=[first_stage], **settings).fit(X, y)
    assert all(point.bytes <= 6000 for point in system.operating_points_)
    assert f"{system.operating_point_.bytes} bytes" in system.summary()


@pytest.mark.slow
def test_pairs_whose_model_exceeds_max_bytes_are_refused_with_its_size() -> None:
    X, _, y, _ = load_table()
    small_model, large_model = (
        LogisticRegression(C=C, max_iter=5000).fit(X, y) for C in (0.01, 1.0)
    )
    pair = gw.PairCascade(
        low_cost_model=small_model, high_cost_model=large_model, random_state=0
    ).fit(X, y)
    n_bytes = pair.operating_point_.bytes
    assert n_bytes > 0
    assert pair.at(max_bytes=n_bytes, max_loss=0.5).operating_point_.bytes <= n_bytes
    with pytest.raises(TooLargeError) as error_of_at:
        pair.at(max_bytes=n_bytes - 1, max_loss=0.5)
    with pytest.raises(TooLargeError) as error_of_fit:
        pair.set_params(max_bytes=n_bytes - 1).fit(X, y)
    assert error_of_at.value.smallest_bytes == error_of_fit.value.smallest_bytes == n_bytes
