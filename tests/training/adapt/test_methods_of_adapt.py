"""The Adapt family and its baselines: what all of them promise, and the equations of each."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from gatewise.errors import InputError
from gatewise.models.losses import log_loss
from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    AdaptLstsq,
    CloudPrices,
    ConfidenceCascade,
    FeatureCosts,
    GreedyMiser,
    L1Cascade,
)
from gatewise_training.adapt.alternation import alternate, pose
from gatewise_training.adapt.gbrt import grow
from gatewise_training.adapt.prox_newton import solve as solve_m_step
from gatewise_training.adapt.qstep import LogOdds
from gatewise_training.adapt.sample import Sample
from gatewise_training.cascades.cascade import CascadeClassifier
from gatewise_training.learners.growth_settings import Growth, tree_settings

pytestmark = pytest.mark.slow

N_FEATURES = 9
NAMES = [f"f{k}" for k in range(N_FEATURES)]
COSTS = FeatureCosts(
    [1.0, 2.0, 0.5, 0.0, 1.0, 0.0, 3.0, 1.0, 1.0],
    group=["a", "a", None, "b", "b", "b", None, "c", None],
    shared={"a": 2.0, "b": 4.0, "c": 1.0},
    names=NAMES,
)
LINEAR = {"p_full": (0.3,), "penalties": (0.5, 0.1, 0.01), "n_starts": 1}
TREES = {"penalties": (0.03, 0.003), "n_rounds": 20}
METHODS = {
    "adapt-lin": AdaptLin(**LINEAR),
    "adapt-lstsq": AdaptLstsq(**LINEAR | {"penalties": (0.3,), "max_alternations": 60}),
    "adapt-gbrt": AdaptGBRT(p_full=(0.3,), warm_up=5, **TREES),
    "l1": L1Cascade(penalties=(0.5, 0.1, 0.01)),
    "confidence": ConfidenceCascade(low_cost_model="linear", n_subsets=3),
    "greedy-miser": GreedyMiser(**TREES),
}
CASCADES = [m for m, method in METHODS.items() if isinstance(method, CascadeClassifier)]


def table(binary=True):
    """Training and test rows of real data, as frames of nine features."""
    X, y = (load_breast_cancer if binary else load_wine)(return_X_y=True)
    names = np.array(["no", "yes"] if binary else ["a", "b", "c"])
    frame = pd.DataFrame(X[:, :N_FEATURES], columns=NAMES)
    return train_test_split(frame, names[y], test_size=0.3, stratify=y, random_state=0)


def ready(method, X, y, **settings):
    """Clone a method over the priced groups; a cascade gets a fitted forest."""
    model = clone(METHODS[method]).set_params(feature_costs=COSTS, random_state=0, **settings)
    if isinstance(model, CascadeClassifier):
        forest = RandomForestClassifier(30, random_state=0).fit(X.to_numpy(np.float32), y)
        model.set_params(high_cost_model=forest)
    return model


@pytest.fixture(scope="module", params=[(m, b) for m in METHODS for b in (True, False)], ids=str)
def fitted(request):
    method, binary = request.param
    X, X_test, y, y_test = table(binary)
    return ready(method, X, y, max_loss=0.03).fit(X, y), X_test, y_test


def bill(bought):
    """Price of some features, written out from the table above."""
    own = [1.0, 2.0, 0.5, 0.0, 1.0, 0.0, 3.0, 1.0, 1.0]
    groups = {0: "a", 1: "a", 3: "b", 4: "b", 5: "b", 7: "c"}
    shared = {"a": 2.0, "b": 4.0, "c": 1.0}
    touched = {groups[k] for k in bought if k in groups}
    return sum(own[k] for k in bought) + sum(shared[g] for g in touched)


def test_each_row_pays_each_group_once(fitted):
    system, X, _ = fitted
    for point in system.frontier_.points[:6]:
        moved = system.at(budget=point.cost)
        (stage,) = moved.stages_
        exits, costs, paper = moved.exit_stage(X), moved.cost(X), moved.cost(X, "paper")
        kept = exits == 0
        np.testing.assert_allclose(costs[kept], bill(stage.features.tolist()))
        if isinstance(system, CascadeClassifier):
            np.testing.assert_allclose(costs[~kept], bill(range(N_FEATURES)))
            np.testing.assert_allclose(paper[~kept], bill(range(N_FEATURES)))
        else:
            assert kept.all()


def test_a_point_can_be_asked_for(fitted):
    system, X, y = fitted
    frontier = system.frontier_
    middle = 0.5 * (frontier.points[0].cost + frontier.points[-1].cost)
    assert system.at(budget=middle).operating_point_.cost <= middle
    assert system.at(max_loss=0.0).operating_point_.accuracy >= (
        system.at(max_loss=0.2).operating_point_.accuracy
    )
    if isinstance(system, CascadeClassifier):
        least = min(p.offload_rate for p in frontier.points)
        rate = 0.5 * (least + max(p.offload_rate for p in frontier.points))
        assert system.at(offload_rate=rate).operating_point_.offload_rate <= rate
    # what was asked for before the fit is what a move afterwards gives
    assert system.at(max_loss=0.03).operating_point_ == system.operating_point_
    assert system.score(X, y) > 0.75


def test_survives_pickling_and_cloning(fitted):
    system, X, _ = fitted
    again = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(again.predict_proba(X), system.predict_proba(X))
    copied = clone(system)
    assert not hasattr(copied, "frontier_")
    settings = system.get_params(deep=False)
    assert copied.get_params(deep=False).keys() == settings.keys()


def test_frames_are_checked_by_name(fitted):
    system, X, _ = fitted
    assert system.feature_names_ == tuple(NAMES)
    with pytest.raises(ValueError, match="feature names"):
        system.predict(X[NAMES[::-1]])


@pytest.mark.parametrize("method", METHODS)
def test_settings_in_advance_pick_the_point(method):
    X, X_test, y, _ = table()
    asked = [{"budget": 9.0}, {"max_loss": 0.05}]
    if method in CASCADES:
        asked.append({"offload_rate": 0.4})
    for wanted in asked:
        system = ready(method, X, y, **wanted).fit(X, y)
        (kind, bound) = next(iter(wanted.items()))
        point = system.operating_point_
        assert point == system.at(**wanted).operating_point_
        if kind == "budget":
            assert point.cost <= bound
            assert system.cost(X_test).mean() <= 1.3 * bound
        if kind == "offload_rate":
            assert point.offload_rate <= bound


@pytest.mark.parametrize("method", METHODS)
def test_guarantees_are_given(method):
    X, _, y, _ = table()
    wanted = [{"budget": 13.0}, {"max_loss": 0.2}]
    if method in CASCADES:
        wanted.append({"offload_rate": 0.9})
    system = ready(method, X, y, guarantee=0.8, **wanted[0]).fit(X, y)
    for bound in wanted:
        point = system.at(**bound).operating_point_
        assert point.guarantee is not None
        assert point.guarantee["confidence"] == 0.8
        (kind,) = bound
        # certified on rows that no choice has seen, so kept there with room to spare
        if kind == "budget":
            assert point.cost <= bound[kind]
        if kind == "offload_rate":
            assert point.offload_rate <= bound[kind]
    with pytest.raises(InputError, match="equal weight"):
        ready(method, X, y, guarantee=0.8).fit(X, y, np.arange(len(y)) + 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_weights_count(method):
    # half of the rows lie; a weight of nearly nothing silences them
    X, X_test, y, y_test = table()
    rng = np.random.default_rng(0)
    lies = rng.random(len(y)) < 0.5
    told = np.where(lies, np.where(y == "no", "yes", "no"), y)
    weight = np.where(lies, 1e-4, 1.0)
    system = ready(method, X, y, max_loss=0.0).fit(X, told, weight)
    # the device alone, without the help of the forest, which was not lied to
    stage = system.stages_[0]
    margins = stage.margins(X_test.to_numpy(np.float32))
    said = system.classes_[(margins[:, 0] > 0).astype(int)]
    assert np.mean(said == y_test) > 0.8
    assert system.frontier_.reference_accuracy > 0.8


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("adapt-lin", {"p_full": (1.2,)}),
        ("adapt-gbrt", {"p_full": ()}),
        ("adapt-lstsq", {"p_full": (0.0, 0.5)}),
        ("adapt-lin", {"penalties": (-0.1,)}),
        ("adapt-lstsq", {"penalties": ()}),
        ("adapt-lin", {"n_starts": -1}),
        ("l1", {"penalties": ()}),
        ("l1", {"penalties": (np.inf,)}),
        ("adapt-gbrt", {"n_rounds": 0}),
        ("adapt-gbrt", {"warm_up": -1}),
        ("adapt-gbrt", {"num_leaves": 1}),
        ("greedy-miser", {"learning_rate": 0.0}),
        ("greedy-miser", {"max_depth": 0}),
        ("greedy-miser", {"penalties": (-1.0,)}),
        ("confidence", {"low_cost_model": "svn"}),
        ("confidence", {"n_subsets": 0}),
        ("confidence", {"allow_missing": True}),
        ("confidence", {"guarantee": 1.5}),
        ("l1", {"offload_rate": 0.1, "budget": 3.0}),
        ("adapt-gbrt", {"max_loss": -0.1}),
    ],
)
def test_bad_settings_are_refused_by_name(method, change):
    X, _, y, _ = table()
    with pytest.raises(InputError, match=next(iter(change))):
        ready(method, X, y, **change).fit(X, y)


@pytest.mark.parametrize("method", ["adapt-lin", "adapt-lstsq", "l1"])
def test_linear_models_refuse_missing_values(method):
    X, _, y, _ = table()
    system = ready(method, X, y)
    X = X.copy()
    X.iloc[3, 2] = np.nan
    with pytest.raises(InputError, match="column 'f2' contains NaN"):
        system.fit(X, y)
    assert "allow_missing" not in system.get_params()


@pytest.mark.parametrize("method", ["adapt-gbrt", "greedy-miser"])
def test_trees_take_missing_values_with_leave(method):
    X, X_test, y, y_test = table()
    X, X_test = X.copy(), X_test.copy()
    X.iloc[::4, 2] = X_test.iloc[::4, 2] = np.nan
    model = clone(METHODS[method]).set_params(feature_costs=COSTS, random_state=0)
    with pytest.raises(InputError, match="set allow_missing"):
        model.fit(X, y)
    system = model.set_params(allow_missing=True).fit(X, y)
    assert system.score(X_test, y_test) > 0.85


@pytest.mark.parametrize("method", ["adapt-gbrt", "l1", "confidence"])
def test_requests_cost_what_they_cost(method):
    X, X_test, y, _ = table()
    prices = CloudPrices(request=5.0, byte=0.01, evaluation=1.0)
    system = ready(method, X, y, cloud_prices=prices, offload_rate=1.0).fit(X, y)
    sent = system.offload(X_test)
    assert sent.any()
    expected = bill(range(N_FEATURES)) + prices.of_offload(N_FEATURES)
    np.testing.assert_allclose(system.cost(X_test)[sent], expected)


# -- the equations of each -----------------------------------------------------------------


def test_l1_fits_f1_and_then_the_gate_on_the_features_chosen():
    X, _, y, _ = table()
    system = ready("l1", X, y, penalties=(0.1,), max_loss=0.0).fit(X, y)
    (stage,) = system.stages_
    assert 0 < len(stage.features) < N_FEATURES
    x = X.to_numpy(np.float32)[:, stage.features].astype(np.float64)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    label = (y == "yes").astype(int)
    f1 = LogisticRegression(max_iter=500, tol=1e-3).fit(z, label)
    wrong = (f1.predict(z) != label).astype(int)
    gate = LogisticRegression(max_iter=500, tol=1e-3).fit(z, wrong)
    margins = stage.margins(X.to_numpy(np.float32))
    np.testing.assert_allclose(margins[:, 0], f1.decision_function(z), atol=1e-2)
    np.testing.assert_allclose(margins[:, 1], -gate.decision_function(z), atol=1e-2)


def test_l1_chooses_features_without_the_gate_in_mind():
    # a feature that only says where f1 errs has no place in an L1 logistic regression
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 2)).astype(np.float32)
    hard = x[:, 1] > 0.5
    y = np.where(hard, rng.random(1500) < 0.5, x[:, 0] > 0).astype(int)
    f0 = RandomForestClassifier(5, random_state=0).fit(x, y)
    system = L1Cascade(f0, penalties=(0.3,), random_state=0, max_loss=0.0).fit(x, y)
    assert [s.features.tolist() for chain in system.chains_ for s in chain] == [[0]]


def test_confidence_sends_narrow_margins_to_the_cloud():
    X, X_test, y, _ = table()
    system = ready("confidence", X, y, max_loss=0.0).fit(X, y)
    (stage,), (threshold,) = system.stages_, system.operating_point_.thresholds
    margins = stage.margins(X_test.to_numpy(np.float32))[:, 0]
    narrow = np.full(len(margins), True) if threshold is None else np.abs(margins) < threshold
    np.testing.assert_array_equal(system.offload(X_test), narrow)
    sizes = {len(s.features) for chain in system.chains_ for s in chain}
    assert max(sizes) <= N_FEATURES


def test_confidence_sorts_classes_by_the_difference_of_the_two_best():
    X, X_test, y, _ = table(binary=False)
    system = ready("confidence", X, y, max_loss=0.0, n_subsets=1).fit(X, y)
    (stage,), (threshold,) = system.stages_, system.operating_point_.thresholds
    assert len(stage.features) == N_FEATURES
    best = np.sort(stage.margins(X_test.to_numpy(np.float32)), axis=1)[:, ::-1]
    lead = best[:, 0] - best[:, 1]
    sent = np.full(len(lead), True) if threshold is None else lead < np.float32(threshold)
    np.testing.assert_array_equal(system.offload(X_test), sent)


def plain_sample(n=400):
    X, _, y, _ = table()
    x = X.to_numpy(np.float32)[:n]
    label = (y[:n] == "yes").astype(np.int64)
    f0_loss = np.random.default_rng(0).exponential(0.1, len(x))
    return Sample(x, label, np.ones(len(x)), f0_loss, 2, FeatureCosts.uniform(N_FEATURES))


def test_the_gate_of_lstsq_is_the_least_squares_fit_of_the_log_odds():
    given, distance = plain_sample(), LogOdds()
    problem, start, *_ = pose(given, distance.curvature_bound)
    pair, _ = alternate(
        problem, given.f0_loss, 0.3, start, tol=1e-3, most=10, distance=distance
    )  # no penalty
    place = problem.place(pair)
    free = distance.q_step(place.f1_loss, given.f0_loss, place.gate, 0.3, given.weight)
    solved = solve_m_step(problem.at(free), pair, tol=1e-8, max_iter=300)
    wide = np.column_stack([problem.z, np.ones(len(problem.z))])
    expected, *_ = np.linalg.lstsq(wide, logit(free.q), rcond=None)
    found = np.append(solved.weights[:, -1], solved.bias[-1])
    np.testing.assert_allclose(wide @ found, wide @ expected, atol=1e-4)


@pytest.mark.parametrize("p_full", [0.2, 0.6])
def test_the_derivatives_of_gbrt_are_those_of_opt(p_full):
    # one leaf deep: after a full Newton step from rest f1's leaves have the closed form
    given = plain_sample()
    growth = Growth(n_rounds=1, num_leaves=2, learning_rate=1.0)
    model = grow(given, growth, 0.0, p_full=p_full, seed=0)
    out = model.margins(given.x)
    prior = np.full((len(given.x), 1), float(model.base[0]))
    target = given.y[:, None].astype(float)
    loss, ends = log_loss(prior, target), (0.0, 50.0)
    for _ in range(200):  # the multiplier of the bound on mean(q), by bisection
        beta = 0.5 * sum(ends)
        q = expit(loss - given.f0_loss - beta)
        ends = (beta, ends[1]) if q.mean() > p_full else (ends[0], beta)
    q = np.minimum(q, expit(loss - given.f0_loss))
    p = expit(prior[:, 0])
    for column, gradient, hessian in (
        (0, (1 - q) * (p - given.y), (1 - q) * p * (1 - p)),
        (1, 0.5 - q, np.full(len(q), 0.25)),
    ):
        step = out[:, column] - model.base[column]
        leaves = np.unique(step)
        assert len(leaves) == 2
        for value in leaves:
            rows = step == value
            assert value == pytest.approx(-gradient[rows].sum() / hessian[rows].sum(), rel=1e-4)


def test_trees_grow_with_the_data():
    def leaves_and_rate(growth, *size):
        settings = tree_settings(growth, *size)
        return settings["num_leaves"], settings["learning_rate"]

    growth = Growth()
    assert leaves_and_rate(growth, 5000, 2) == leaves_and_rate(growth, 5000, 5) == (31, 0.1)
    assert leaves_and_rate(growth, 5001, 2) == (127, 0.2)
    assert leaves_and_rate(growth, 5001, 5) == (63, 0.1)
    assert leaves_and_rate(Growth(num_leaves=7, learning_rate=0.5), 10**6, 2) == (7, 0.5)
