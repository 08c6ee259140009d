"""Learned stop scores: better than the margin where errors can be foreseen, and honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from gatewise.costs import FeatureCosts
from gatewise.decision import labels, split, stop_score
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.stop_score_model import ScoredModel, score_inputs
from gatewise.models.trees import TreeEnsemble
from gatewise_training import StagedCascade
from gatewise_training.cascades.fit_problem import Chain, Problem
from gatewise_training.cascades.stop_scores import with_stop_scores
from gatewise_training.data.validation_split import Resampling
from gatewise_training.learners.model_families import Bounds, family_of, judged_stage

K = 4


def rows(n, seed, n_classes=2, *, noise=True):
    """Classes by x0; where x1 is large they are dealt at random, which no margin tells."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, K)).astype(np.float32)
    cuts = np.linspace(-1, 1, n_classes + 1)[1:-1]
    y = np.searchsorted(cuts, x[:, 0] + 0.2 * rng.normal(size=n))
    if noise:
        y = np.where(x[:, 1] > 0.7, rng.integers(0, n_classes, n), y)
    return x, y.astype(np.int64)


def problem(n=2500, n_classes=2, *, noise=True, weight=None):
    x, y = rows(n, 0, n_classes, noise=noise)
    weight = np.ones(n) if weight is None else weight
    plan = Resampling.plan(x, y, weight, validation=None, seed=0)
    costs = FeatureCosts.uniform(K)
    return Problem(plan, n_classes, costs, 0, None, lambda *_: None)


def chain_of(task, family="linear"):
    stage, outputs = judged_stage(
        task.plan, family, np.arange(K), task.n_classes, 0, Bounds(None, 20)
    )
    return Chain((stage,), (outputs,))


def regret(stage, x, y):
    """How wrong the stage is where it is surest: area under the risk-coverage curve."""
    margins, score = stage.run(x)
    wrong = (labels(margins) != y)[np.argsort(-score, kind="stable")]
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))


@pytest.mark.parametrize(
    ("family", "n_classes", "left"),
    [("linear", 2, 0.8), ("linear", 4, 0.8), ("boosting", 2, 0.97)],  # trees know more themselves
)
def test_learned_scores_find_the_rows_that_no_margin_tells(family, n_classes, left):
    task = problem(n_classes=n_classes)
    chain = chain_of(task, family)
    (learned,) = with_stop_scores([chain], task, Bounds())
    old, new = chain.stages[0], learned.stages[0]
    assert isinstance(new.model, ScoredModel)
    assert new.score == "column"
    assert family_of(new) == family_of(old) == family
    x, y = rows(20_000, 1, n_classes)
    assert np.array_equal(new.run(x)[0], old.run(x)[0])  # the answers stay
    assert regret(new, x, y) < left * regret(old, x, y)


def test_scores_on_judging_rows_are_as_good_as_on_new_rows_and_no_better():
    task = problem(1200)
    chain = chain_of(task)
    (learned,) = with_stop_scores([chain], task, Bounds())
    held, stage = task.plan.held, learned.stages[0]
    margins, score = split(learned.held_outputs[0], "column")
    assert np.array_equal(margins, chain.held_outputs[0])
    wrong = labels(margins) != task.plan.y[held]
    out_of_fold = roc_auc_score(wrong, -score)
    seen = stage.model.scored(task.plan.x[held][:, stage.features], margins)[:, -1]
    in_sample = roc_auc_score(wrong, -seen)
    x, y = rows(40_000, 2)
    fresh_margins, fresh_score = stage.run(x)
    fresh = roc_auc_score(labels(fresh_margins) != y, -fresh_score)
    assert in_sample > fresh + 0.03  # fitted rows flatter: a test that could not see it is none
    assert abs(out_of_fold - fresh) < 0.025


def test_a_margin_that_tells_all_stays():
    task = problem(noise=False)
    assert with_stop_scores([chain_of(task)], task, Bounds()) == [None]


def test_random_errors_cannot_be_learned():
    task = problem()
    chain = chain_of(task)
    y = task.plan.y.copy()
    said = labels(chain.held_outputs[0])
    flips = np.random.default_rng(5).random(len(said)) < 0.2
    y[task.plan.held] = np.where(flips, 1 - said, said)
    task = replace(task, plan=replace(task.plan, y=y))
    assert with_stop_scores([chain], task, Bounds()) == [None]


def test_rows_of_one_person_do_not_tell_on_each_other():
    """Some persons' labels are turned: foreseeable only for who has seen the person."""
    x, y = rows(1500, 3, noise=False)
    rng = np.random.default_rng(4)
    person = np.repeat(np.arange(20), 100)
    x_held, y_held = rows(2000, 5, noise=False)
    x_held[:, 1:] = rng.normal(size=(20, K - 1))[person] + 0.01 * x_held[:, 1:]
    y_held = np.where((person % 4 == 1) & (rng.random(2000) < 0.8), 1 - y_held, y_held)
    mixed = rng.permutation(2000)
    found = []
    for order in (np.arange(2000), mixed):
        held = (x_held[order], y_held[order])
        plan = Resampling.plan(x, y, np.ones(len(y)), validation=held, seed=0)
        task = Problem(plan, 2, FeatureCosts.uniform(K), 0, None, lambda *_: None)
        found += with_stop_scores([chain_of(task)], task, Bounds())
    assert found[0] is None
    assert found[1] is not None  # only a shuffle would have fooled it


def test_a_stage_of_two_chains_stays_one():
    task = problem()
    chain = chain_of(task)
    one, two = with_stop_scores([chain, chain], task, Bounds())
    assert one.stages[0] is two.stages[0]


def test_rows_without_weight_say_nothing():
    n = 2500
    x, _ = rows(n, 0)
    weight = np.where(x[:, 1] > 0.7, 1e-9, 1.0)  # the noisy rows
    task = problem(n, weight=weight)
    assert with_stop_scores([chain_of(task)], task, Bounds()) == [None]


def test_bounds_count_the_stop_trees():
    task = problem()
    chain = chain_of(task, "boosting")
    stage = chain.stages[0]
    (free,) = with_stop_scores([chain], task, Bounds())
    model = free.stages[0].model
    assert free.stages[0].n_trees == stage.n_trees + model.stop.n_trees
    assert free.stages[0].nbytes == stage.nbytes + model.stop.nbytes
    assert model.stop.n_trees > 5
    few = Bounds(None, stage.n_trees + 5)
    (bound,) = with_stop_scores([chain], task, few)
    assert stage.n_trees < bound.stages[0].n_trees <= stage.n_trees + 5
    small = Bounds(stage.nbytes + 3000)
    (bound,) = with_stop_scores([chain], task, small)
    assert stage.nbytes < bound.stages[0].nbytes <= stage.nbytes + 3000
    assert with_stop_scores([chain], task, Bounds(stage.nbytes)) == [None]
    assert with_stop_scores([chain], task, Bounds(None, stage.n_trees)) == [None]


def stump(n_features, column):
    """-2 where the column is at most 0, else 3."""
    return TreeEnsemble(
        feature=np.array([column, -1, -1], np.int32),
        threshold=np.zeros(3, np.float32),
        left=np.array([1, -1, -1], np.int32),
        right=np.array([2, -1, -1], np.int32),
        nan_left=np.zeros(3, bool),
        value=np.array([[0], [-2], [3]], np.float32),
        roots=np.zeros(1, np.int32),
        output=np.zeros(1, np.int32),
        base=np.zeros(1, np.float32),
        n_features=n_features,
    )


def test_the_score_is_the_margins_own_and_what_the_trees_say():
    model = ScoredModel(stump(2, 0), stump(4, 1))
    x = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    assert model.margins(x).tolist() == [[3, 6], [3, 1], [-2, 5], [-2, 0]]
    assert (model.n_features, model.n_outputs, model.n_trees) == (2, 2, 2)
    own = model.model.margins(x)
    assert np.array_equal(score_inputs(x, own), np.column_stack([x, own, stop_score(own)]))
    with pytest.raises(InputError, match="must read 4 columns"):
        ScoredModel(stump(2, 0), stump(2, 1))
    with pytest.raises(InputError, match="score='column'"):
        Stage(model, np.arange(2), "sigmoid")


@pytest.fixture(scope="module")
def data():
    return rows(600, 7)


def staged(data, **settings):
    f0 = LogisticRegression()
    system = StagedCascade(
        f0, n_stages=2, families=("linear",), effort="low", random_state=0, **settings
    )
    return system.fit(*data)


def test_the_pool_with_learned_chains_is_never_worse_on_judging_rows(data):
    margin, learned, auto = (staged(data, stop=stop) for stop in ("margin", "learned", "auto"))
    assert all(s.score == "margin" for chain in margin.chains_ for s in chain)
    assert any(s.score == "column" for chain in learned.chains_ for s in chain)
    for other in (margin, learned):
        for point in other.frontier_.points:
            best = auto.frontier_.at(budget=point.cost)
            assert best.accuracy >= point.accuracy - 1e-12


def test_settings_are_checked(data):
    with pytest.raises(InputError, match="stop must be"):
        staged(data, stop="gate")
    with pytest.raises(InputError, match="acquisition='stage'"):
        staged(data, stop="learned", acquisition="node")
