"""Leaves of boosted trees are those that validation rows ask for, in all models."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gatewise_training import AdaptGBRT, CEGBClassifier, StagedCascade
from gatewise_training.cascades.family_selection import best_shape
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners import boosting, high_cost_training
from gatewise_training.learners.boosting import capacity, fit_boosting
from gatewise_training.learners.high_cost_training import (
    FEWER_LEAVES,
    train_high_cost_model,
    tree_shape,
)
from gatewise_training.learners.stage_bounds import Bounds, ForestShape, shaped
from tests.support.fit_problems import problem_of

pytestmark = pytest.mark.slow  # many fits


def sums(n: int = 7000):
    """Noisy sums of twelve features: no feature changes what another says."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, 12)).astype(np.float32)
    return x, (x.sum(axis=1) + draw.normal(size=n) > 0).astype(np.int64)


def squares(n: int = 12000):
    """A chessboard of 12 x 12: a tree needs a leaf for every square."""
    x = np.random.default_rng(0).uniform(0, 12, size=(n, 2)).astype(np.float32)
    return x, (np.floor(x).sum(axis=1) % 2).astype(np.int64)


def plan_of(rows) -> ValidationSplit:
    x, y = rows
    return ValidationSplit.choose(x, y, np.ones(len(x)), validation=None, seed=0)


def fit_with(plan: ValidationSplit, leaves: int):
    """Fit boosted trees of so many leaves on the plan's one fold; and their rounds."""
    ((rows, unseen),) = plan.folds
    return fit_boosting(
        plan.x[rows],
        plan.y[rows],
        2,
        weight=plan.weight[rows],
        validation=(plan.x[unseen], plan.y[unseen], plan.weight[unseen]),
        rounds=600,
        params=capacity(len(plan.fit_rows), 2) | {"num_leaves": leaves},
    )


def most_leaves(trees) -> int:
    """Leaves of the tree with the most of them; trees stand one after another."""
    leaves = np.add.reduceat((trees.feature < 0).astype(int), trees.roots)
    return int(leaves.max())


def test_sums_get_small_trees_and_squares_large_ones() -> None:
    small = tree_shape(plan_of(sums()), 2, seed=0)
    large = tree_shape(plan_of(squares()), 2, seed=0)
    assert small.leaves <= 15
    assert large.leaves == capacity(12000, 2)["num_leaves"] == 255


def test_no_tried_number_of_leaves_has_a_lower_loss() -> None:
    plan = plan_of(sums())
    found = train_high_cost_model(plan, 2, allow_missing=True, seed=0)
    assert found.shape == tree_shape(plan, 2, seed=0)
    most, unseen = capacity(len(plan.fit_rows), 2)["num_leaves"], plan.folds[0][1]

    def loss(leaves: int) -> float:
        trees, _ = fit_with(plan, leaves)
        margin = trees.margins(plan.x[unseen])[:, 0].astype(float)
        return float(np.logaddexp(0, np.where(plan.y[unseen] == 1, -margin, margin)).mean())

    losses = {leaves: loss(leaves) for leaves in FEWER_LEAVES if leaves <= most}
    assert losses[found.shape.leaves] == min(losses.values())


def test_of_many_rows_some_choose_and_all_are_fitted(monkeypatch) -> None:
    for module in (boosting, high_cost_training):
        monkeypatch.setattr(module, "MANY_ROWS", 5500)
    plan = plan_of(squares(8000))
    found = train_high_cost_model(plan, 2, allow_missing=True, seed=0)
    most = capacity(len(plan.fit_rows), 2)
    assert most == {"num_leaves": 1023, "learning_rate": found.shape.rate}
    trees, rounds = fit_with(plan, found.shape.leaves)
    assert found.model.kind == "boosting"
    assert found.model.rounds == rounds
    assert (found.model.trees.margins(plan.x) == trees.margins(plan.x)).all()


def test_some_of_many_validation_rows_end_a_fit(monkeypatch) -> None:
    x, y = sums(2500)
    weight = np.ones(len(x))
    unseen = x[1000:], y[1000:], weight[1000:]

    def fit(*validation):
        return fit_boosting(x[:1000], y[:1000], 2, validation=validation, rounds=600)

    _, of_all = fit(*unseen)
    _, of_every_third = fit(*(each[::3] for each in unseen))
    monkeypatch.setattr(boosting, "STOPPING_ROWS", 500)
    assert fit(*unseen)[1] == of_every_third != of_all


def test_few_rows_get_fine_bins_for_sharp_thresholds() -> None:
    x = np.random.default_rng(0).uniform(0, 100, size=(3000, 1)).astype(np.float32)
    stripes = (np.floor(x[:, 0]) % 2).astype(np.int64)
    assert tree_shape(plan_of((x, stripes)), 2, seed=0).bins == 255
    assert tree_shape(plan_of(sums(2000)), 2, seed=0).leaves == capacity(2000, 2)["num_leaves"]


@pytest.mark.parametrize("high_cost_model", [None, LogisticRegression()])
def test_stages_have_no_more_leaves_than_the_shape(high_cost_model) -> None:
    x, y = sums()
    shape = tree_shape(plan_of((x, y)), 2, seed=0)
    cascade = StagedCascade(
        high_cost_model=high_cost_model,
        families=("boosting",),
        n_stages=3,
        effort="low",
        allow_missing=high_cost_model is None,  # boosting alone: the others take long
        random_state=0,
    ).fit(x[:5600], y[:5600], validation=(x[5600:], y[5600:]))
    stages = {stage for chain in cascade.chains_ for stage in chain}
    assert max(most_leaves(stage.model) for stage in stages) <= shape.leaves


@pytest.mark.parametrize(("given", "at_most"), [(None, 31), (50, 50)])
def test_trees_of_adapt_have_few_leaves_where_these_are_best_unless_told(given, at_most) -> None:
    x, y = sums()
    cascade = AdaptGBRT(
        LogisticRegression(),
        p_full=(0.3,),
        penalties=(0.0001,),
        stop="gate",
        n_rounds=20,
        num_leaves=given,
    ).fit(x[:5600], y[:5600], validation=(x[5600:], y[5600:]))
    leaves = {most_leaves(stage.model) for chain in cascade.chains_ for stage in chain}
    assert max(leaves) == at_most


def test_trees_of_cegb_have_the_leaves_that_are_best_unless_told() -> None:
    x, y = sums()
    settings = {"n_penalties": 1, "n_rounds": 5, "random_state": 0}
    searched = CEGBClassifier(**settings).fit(x, y)
    told = CEGBClassifier(num_leaves=31, **settings).fit(x, y)
    assert most_leaves(searched.stages_[0].model) <= 4
    assert most_leaves(told.stages_[0].model) == 31


def test_within_bounds_of_size_leaves_are_not_searched_beforehand() -> None:
    many, few = problem_of(*sums(7000)), problem_of(*sums(1000))
    assert best_shape(many, ("boosting",), of_size=True) is None
    assert best_shape(many, ("linear",)) is None
    assert best_shape(few, ("boosting",), of_size=True) == tree_shape(few.plan, 2, seed=0)


def test_stages_that_stand_alone_are_larger_forests() -> None:
    x, y = squares(7000)
    trees = []
    for most in (None, 1.5):
        cascade = StagedCascade(
            LogisticRegression(),
            families=("extra-trees",),
            n_stages=2,
            max_instance_cost=most,
            random_state=0,
        ).fit(x, y)
        trees.append({stage.n_trees for chain in cascade.chains_ for stage in chain})
    assert trees == [{50}, {150}]


def test_extra_trees_have_several_shapes_only_alone_and_without_bounds_of_size() -> None:
    def tried(n_rows: int, **bounds) -> list[ForestShape | None]:
        kinds = shaped(("extra-trees", "linear"), Bounds(**bounds), n_rows, 2, 5)
        assert kinds.pop("linear") == ("linear", Bounds(**bounds))
        assert {family for family, _ in kinds.values()} == {"extra-trees"}
        return [found.forest for _, found in kinds.values()]

    assert tried(7000, alone=True) == [ForestShape(150, 1), ForestShape(150, 2)]
    assert tried(7000) == tried(5000, alone=True) == [None]
    assert tried(7000, alone=True, max_bytes=65536) == [None]
