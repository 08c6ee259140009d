"""Sizes of boosted trees and forests, chosen on validation rows for every kind of model."""

import sys
from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gatewise_training import AdaptGBRT, CEGBClassifier, StagedCascade
from gatewise_training.cascades.family_selection import best_shape
from gatewise_training.data import validation_split
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners import boosting, high_cost_training
from gatewise_training.learners.boosting import capacity_params, fit_boosting
from gatewise_training.learners.high_cost_training import (
    LEAVES_TO_TRY,
    train_high_cost_model,
    tree_shape,
)
from gatewise_training.learners.stage_bounds import Bounds, ForestShape, TreeShape, models_to_try
from tests.support.fit_problems import make_problem

pytestmark = pytest.mark.slow  # many fits

#: Replaces the MAX_SMALL_ROWS of `boosting`, above which the number of leaves is searched, and the
#: number above which rows are held out, so that fits are fast. Most sets have 2500 rows, of which
#: 2000 are fitted on.
FEW_SMALL_ROWS = 1900


@pytest.fixture(autouse=True)
def few_small_rows(monkeypatch):
    monkeypatch.setattr(validation_split, "MAX_CROSS_FIT_ROWS", FEW_SMALL_ROWS)
    for name, module in list(sys.modules.items()):
        if name.startswith("gatewise_training.") and hasattr(module, "MAX_SMALL_ROWS"):
            monkeypatch.setattr(module, "MAX_SMALL_ROWS", FEW_SMALL_ROWS)


def draw_sums(n_rows: int = 2500):
    """Draw rows and classes, the signs of noisy sums of six features that do not interact."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, 6)).astype(np.float32)
    return x, (x.sum(axis=1) + rng.normal(size=n_rows) > 0).astype(np.int64)


def draw_chessboard(n_rows: int = 12000):
    """Draw a chessboard of 12 x 12, for which a tree needs a leaf for every square."""
    x = np.random.default_rng(0).uniform(0, 12, size=(n_rows, 2)).astype(np.float32)
    return x, (np.floor(x).sum(axis=1) % 2).astype(np.int64)


def split_rows(rows) -> ValidationSplit:
    x, y = rows
    return ValidationSplit.choose(x, y, np.ones(len(x)), validation=None, seed=0)


@cache
def find_shape_of_sums() -> TreeShape:
    return tree_shape(split_rows(draw_sums()), 2, seed=0)


def fit_trees_and_rounds(split: ValidationSplit, n_leaves: int):
    """Fit boosted trees with this number of leaves; return them and their rounds."""
    ((rows, unseen_rows),) = split.folds
    return fit_boosting(
        split.x[rows],
        split.y[rows],
        2,
        weight=split.weight[rows],
        validation=(split.x[unseen_rows], split.y[unseen_rows], split.weight[unseen_rows]),
        max_rounds=600,
        params=capacity_params(len(split.fit_rows), 2) | {"num_leaves": n_leaves},
    )


def count_leaves_of_largest_tree(trees) -> int:
    """Count the leaves of the largest tree."""
    leaves = np.add.reduceat((trees.feature < 0).astype(int), trees.roots)
    return int(leaves.max())


def test_best_trees_of_sums_are_small_and_of_chessboards_large() -> None:
    small_shape = find_shape_of_sums()
    large_shape = tree_shape(split_rows(draw_chessboard()), 2, seed=0)
    assert small_shape.n_leaves <= 15  # a sum needs no interactions, and so only small trees
    # the chessboard has 144 squares
    assert large_shape.n_leaves == capacity_params(12000, 2)["num_leaves"] == 255


def test_shape_has_the_lowest_loss_of_all_numbers_of_leaves() -> None:
    split = split_rows(draw_sums())
    trained_model = train_high_cost_model(split, 2, allow_missing=True, seed=0)
    assert trained_model.shape == find_shape_of_sums()
    max_leaves = capacity_params(len(split.fit_rows), 2)["num_leaves"]
    unseen_rows = split.folds[0][1]

    def compute_loss(n_leaves: int) -> float:
        trees, _ = fit_trees_and_rounds(split, n_leaves)
        margins = trees.margins(split.x[unseen_rows])[:, 0].astype(float)
        # the log loss log(1 + exp(-margin)) of class 1
        return float(np.logaddexp(0, np.where(split.y[unseen_rows] == 1, -margins, margins)).mean())

    losses = {
        n_leaves: compute_loss(n_leaves) for n_leaves in LEAVES_TO_TRY if n_leaves <= max_leaves
    }
    assert losses[trained_model.shape.n_leaves] == min(losses.values())


def test_shape_is_chosen_on_a_sample_of_many_rows_and_fitted_on_all(monkeypatch) -> None:
    for module in (boosting, high_cost_training):
        monkeypatch.setattr(module, "MAX_MEDIUM_ROWS", 3500)  # fewer than the fit rows
    split = split_rows(draw_chessboard(5000))
    trained_model = train_high_cost_model(split, 2, allow_missing=True, seed=0)
    largest_params = capacity_params(len(split.fit_rows), 2)
    # the settings for many rows
    assert largest_params == {
        "num_leaves": 1023,
        "learning_rate": trained_model.shape.learning_rate,
    }
    trees, rounds = fit_trees_and_rounds(split, trained_model.shape.n_leaves)
    assert trained_model.model.kind == "boosting"
    assert trained_model.model.rounds == rounds
    assert (trained_model.model.trees.margins(split.x) == trees.margins(split.x)).all()


def test_early_stopping_uses_a_sample_of_many_validation_rows(monkeypatch) -> None:
    x, y = draw_sums(2500)
    weight = np.ones(len(x))
    validation = x[1000:], y[1000:], weight[1000:]

    def fit_and_count_rounds(*arrays):
        return fit_boosting(x[:1000], y[:1000], 2, validation=arrays, max_rounds=600)[1]

    rounds_with_all_rows = fit_and_count_rounds(*validation)
    rounds_with_every_third = fit_and_count_rounds(*(array[::3] for array in validation))
    # of the 1,500 validation rows, every third remains
    monkeypatch.setattr(boosting, "MAX_STOPPING_ROWS", 500)
    assert fit_and_count_rounds(*validation) == rounds_with_every_third != rounds_with_all_rows


def test_few_rows_with_sharp_thresholds_get_fine_bins() -> None:
    x = np.random.default_rng(0).uniform(0, 100, size=(2300, 1)).astype(np.float32)
    stripes = (np.floor(x[:, 0]) % 2).astype(np.int64)
    # the coarse bins cannot separate 100 stripes
    assert tree_shape(split_rows((x, stripes)), 2, seed=0).n_bins == 255
    # the number of leaves is searched only if there are many rows
    assert (
        tree_shape(split_rows(draw_sums(1000)), 2, seed=0).n_leaves
        == capacity_params(1000, 2)["num_leaves"]
    )


@pytest.mark.parametrize("high_cost_model", [None, LogisticRegression()])
def test_stages_have_no_more_leaves_than_the_shape(high_cost_model) -> None:
    x, y = draw_sums()
    cascade = StagedCascade(
        high_cost_model=high_cost_model,
        families=("boosting",),
        n_stages=3,
        effort="low",
        allow_missing=high_cost_model is None,  # so that only boosting is fitted, to save time
        random_state=0,
    ).fit(x[:2000], y[:2000], validation=(x[2000:], y[2000:]))
    stages = {stage for chain in cascade.chains_ for stage in chain}
    assert (
        max(count_leaves_of_largest_tree(stage.model) for stage in stages)
        <= find_shape_of_sums().n_leaves
    )


@pytest.mark.parametrize(("num_leaves", "expected_leaves"), [(None, 31), (50, 50)])
def test_adapt_uses_num_leaves_or_the_best_number_of_leaves(num_leaves, expected_leaves) -> None:
    x, y = draw_sums()
    cascade = AdaptGBRT(
        LogisticRegression(),
        p_full=(0.3,),
        penalties=(0.0001,),
        stop="gate",
        n_rounds=20,
        num_leaves=num_leaves,
    ).fit(x[:2000], y[:2000], validation=(x[2000:], y[2000:]))
    leaf_counts = {
        count_leaves_of_largest_tree(stage.model) for chain in cascade.chains_ for stage in chain
    }
    # 31 is the smallest default on so many rows
    assert max(leaf_counts) == expected_leaves


def test_cegb_uses_num_leaves_or_the_best_number_of_leaves() -> None:
    x, y = draw_sums()
    settings = {"n_penalties": 1, "n_rounds": 5, "random_state": 0}
    training = {"X": x[:2000], "y": y[:2000], "validation": (x[2000:], y[2000:])}
    default_model = CEGBClassifier(**settings).fit(**training)
    model_with_setting = CEGBClassifier(num_leaves=31, **settings).fit(**training)
    # features do not interact, so small trees are best
    assert count_leaves_of_largest_tree(default_model.stages_[0].model) <= 4
    assert count_leaves_of_largest_tree(model_with_setting.stages_[0].model) == 31  # the setting


def test_shape_is_not_searched_on_many_rows_with_a_size_limit() -> None:
    large_problem = make_problem(*draw_sums())
    small_problem = make_problem(*draw_sums(1000))
    assert best_shape(large_problem, ("boosting",), has_size_bound=True) is None
    assert best_shape(large_problem, ("linear",)) is None
    assert best_shape(small_problem, ("boosting",), has_size_bound=True) == tree_shape(
        small_problem.split, 2, seed=0
    )


def test_stages_that_never_offload_are_larger_forests() -> None:
    x, y = draw_chessboard(2500)
    tree_counts = []
    for max_instance_cost in (None, 1.5):  # an offload costs 2, so the cap rules it out
        cascade = StagedCascade(
            LogisticRegression(),
            families=("extra-trees",),
            n_stages=2,
            max_instance_cost=max_instance_cost,
            random_state=0,
        ).fit(x[:2000], y[:2000], validation=(x[2000:], y[2000:]))
        tree_counts.append({stage.n_trees for chain in cascade.chains_ for stage in chain})
    # usual trees, and trees of stages that replace the high-cost model
    assert tree_counts == [{50}, {150}]


def test_forests_have_several_shapes_only_without_offloads_and_size_limit() -> None:
    def list_forest_shapes(n_rows: int, **bounds) -> list[ForestShape | None]:
        families_and_bounds = models_to_try(
            ("extra-trees", "linear"), Bounds(**bounds), n_rows, 2, 5
        )
        assert families_and_bounds.pop("linear") == ("linear", Bounds(**bounds))
        assert {family for family, _ in families_and_bounds.values()} == {"extra-trees"}
        return [shape_bounds.forest_shape for _, shape_bounds in families_and_bounds.values()]

    assert list_forest_shapes(2000, without_offloads=True) == [
        ForestShape(150, 1),
        ForestShape(150, 2),
    ]
    assert list_forest_shapes(2000) == [None]  # other fits have one shape, the default
    # at most MAX_SMALL_ROWS rows
    assert list_forest_shapes(1900, without_offloads=True) == [None]
    # bytes bound the shape
    assert list_forest_shapes(2000, without_offloads=True, max_bytes=65536) == [None]
