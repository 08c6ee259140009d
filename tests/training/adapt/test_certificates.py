"""Test the Adapt family against its theory.

The tests check optimality conditions, descent, special cases and shared prices.

The symbols are those of the paper (NIPS 2017): f0 and f1 are the high-cost and the low-cost model,
g is the gate's margin, q are the free offload probabilities, whose mean is at most `p_full`, and
gamma is the weight of the penalty. z are the features, scaled to mean 0 and variance 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from gatewise_training import FeatureCosts
from gatewise_training.adapt.alternation import (
    Start,
    alternate,
    best_starts,
    featureless_pair,
    set_up_m_step,
)
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.lin import AdaptLin, fit_path
from gatewise_training.adapt.lstsq import AdaptLstsq
from gatewise_training.adapt.m_step import LinearPair
from gatewise_training.adapt.qstep import KullbackLeibler, LogOdds
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.growth_settings import Growth
from gatewise_training.learners.losses import log_loss

pytestmark = pytest.mark.slow

PRICES = FeatureCosts(
    [1.0, 0.5, 2.0, 0.0, 1.0, 0.0],
    group=["a", "a", None, "b", "b", None],
    shared={"a": 1.5, "b": 0.7},
)


def draw_sample(n_classes=2, costs=PRICES, n=300, seed=0, has_equal_weights=False):
    """Draw correlated features, noisy linear labels, and small losses of the high-cost model."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, costs.n_features)) @ rng.normal(size=2 * (costs.n_features,))
    margins = x @ rng.normal(size=(costs.n_features, n_classes))
    y = (margins + 2.0 * rng.normal(size=margins.shape)).argmax(axis=1)
    weight = np.ones(n) if has_equal_weights else rng.uniform(0.5, 1.5, n)
    f0_loss = rng.exponential(0.1, n)
    return Sample(x.astype(np.float32), y, weight / weight.mean(), f0_loss, n_classes, costs)


DISTANCES = {"kl": KullbackLeibler(), "log-odds": LogOdds()}


@pytest.mark.parametrize("p_full", [0.2, 0.6])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_alternation_descends_to_a_stationary_point(distance, n_classes, p_full):
    training_sample = draw_sample(n_classes)
    problem, start, *_ = set_up_m_step(training_sample, distance.curvature_bound)
    featureless_fit, critical_penalty = featureless_pair(
        problem, start, training_sample.f0_loss, p_full, distance
    )
    # a fifth of the smallest penalty at which no priced feature is acquired
    penalised_problem = replace(problem, gamma=0.2 * critical_penalty)
    tol = 1e-6
    pair, objectives = alternate(
        penalised_problem,
        training_sample.f0_loss,
        p_full,
        featureless_fit,
        tol=tol,
        max_steps=3000,
        distance=distance,
    )
    assert len(objectives) < 3000  # `tol` ended the alternation, not the bound on its steps
    assert np.diff(objectives).max() <= 1e-10  # no step rises by more than rounding errors
    # q is optimal for the pair and the pair is optimal for q
    iterate = penalised_problem.evaluate(pair)
    probabilities = distance.q_step(
        iterate.f1_loss, training_sample.f0_loss, iterate.g, p_full, training_sample.weight
    )
    assert np.average(probabilities.q, weights=training_sample.weight) <= p_full + 1e-8
    # q changes a little after the last step, so that the residual is not below tol
    assert penalised_problem.with_q(probabilities).kkt_residual(pair) <= 10 * tol
    objective = penalised_problem.with_q(probabilities).objective(pair)
    objective += np.average(
        probabilities.q * training_sample.f0_loss + probabilities.constant,
        weights=training_sample.weight,
    )
    assert objective == pytest.approx(objectives[-1], abs=1e-10)


def test_the_objective_equals_the_formula_of_the_paper():
    training_sample = draw_sample(has_equal_weights=True)
    problem, start, *_ = set_up_m_step(training_sample)
    pair = replace(start, weights=start.weights + 0.3, bias=start.bias - 0.2)  # not optimal
    penalised_problem, distance = replace(problem, gamma=0.05), KullbackLeibler()
    p_full = 0.4
    _, (objective,) = alternate(
        penalised_problem,
        training_sample.f0_loss,
        p_full,
        pair,
        tol=0.0,
        max_steps=1,
        distance=distance,
    )
    # OPT with the losses, the divergence and the penalty written out
    outputs = pair.outputs(problem.z)
    f1_loss, offload = log_loss(outputs[:, :1], problem.target), expit(outputs[:, 1])
    probabilities = distance.q_step(
        f1_loss, training_sample.f0_loss, outputs[:, 1], p_full, training_sample.weight
    )
    q = probabilities.q
    divergence = q * np.log(q / offload) + (1 - q) * np.log((1 - q) / (1 - offload))
    # 1.5 and 0.7 are the shared prices of the groups of features 0 and 1, and 3 and 4
    feature_norms = np.linalg.norm(pair.weights, axis=1)
    penalty = feature_norms @ PRICES.own
    penalty += 1.5 * np.hypot(*feature_norms[[0, 1]]) + 0.7 * np.hypot(*feature_norms[[3, 4]])
    expected_objective = (
        np.mean((1 - q) * f1_loss + q * training_sample.f0_loss + divergence) + 0.05 * penalty
    )
    assert objective == pytest.approx(expected_objective, rel=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_above_the_critical_penalty_only_free_features_are_acquired(distance, n_classes):
    method_class = AdaptLstsq if isinstance(distance, LogOdds) else AdaptLin
    # penalties are shares of the critical penalty
    method = method_class(penalties=(1.01, 0.9), tol=1e-7, max_alternations=1000, refit=False)
    models = fit_path(draw_sample(n_classes), method, p_full=0.4)
    # feature 3 has no own price either, but its group has a shared price
    is_free = np.array([False, False, False, False, False, True])
    weights_above, weights_below = (model.weights for model in models)
    assert not weights_above[~is_free].any()
    assert weights_above[is_free].any()
    assert weights_below[~is_free].any()


def test_group_lasso_pays_a_shared_price_once():
    # the two features are worth one price together, but not one price each
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = (x.sum(axis=1) + 0.5 * rng.normal(size=400) > 0).astype(np.int64)
    p_full = 0.2

    def fit_featureless_pair(costs):
        training_sample = Sample(x, y, np.ones(400), np.full(400, 0.05), 2, costs)
        problem, start, *_ = set_up_m_step(training_sample)
        return (
            training_sample,
            problem,
            featureless_pair(problem, start, training_sample.f0_loss, p_full, DISTANCES["kl"]),
        )

    def find_acquired_features(costs, gamma):
        training_sample, problem, (featureless, _) = fit_featureless_pair(costs)
        pair, _ = alternate(
            replace(problem, gamma=gamma),
            training_sample.f0_loss,
            p_full,
            featureless,
            tol=1e-9,
            max_steps=500,
        )
        return pair.weights.any(axis=1)

    shared_price = FeatureCosts([0.0, 0.0], group=["g", "g"], shared={"g": 1.0})
    own_prices = FeatureCosts([1.0, 1.0])
    (_, critical_penalty), (_, critical_penalty_of_own_prices) = (
        fit_featureless_pair(shared_price)[2],
        fit_featureless_pair(own_prices)[2],
    )
    # With equal gradients d of both features, a penalty on the norm of both weights is critical
    # at sqrt(2) d, and one on each weight at d.
    assert critical_penalty > 1.2 * critical_penalty_of_own_prices
    penalty_between = 0.5 * (critical_penalty + critical_penalty_of_own_prices)
    assert find_acquired_features(shared_price, penalty_between).all()
    assert not find_acquired_features(own_prices, penalty_between).any()


@pytest.mark.parametrize("newton", [False, True], ids=["first-order", "newton"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("costs", [FeatureCosts.uniform(6), PRICES], ids=["uniform", "groups"])
def test_adapt_without_offloading_grows_the_trees_of_greedy_miser(costs, n_classes, newton):
    training_sample = draw_sample(n_classes, costs, n=500)
    growth = Growth(n_rounds=12, num_leaves=8, learning_rate=0.3, newton=newton)
    # with p_full=0 no row may be offloaded; p_full=None grows trees without a gate
    adapt_trees = grow_gated_trees(training_sample, growth, 0.004, p_full=0.0, warm_up=4, seed=0)
    miser_trees = grow_gated_trees(training_sample, growth, 0.004, p_full=None, seed=0)
    n_margins = 1 if n_classes == 2 else n_classes
    assert (adapt_trees.n_outputs, miser_trees.n_outputs) == (n_margins + 1, n_margins)
    f1_trees, _ = adapt_trees.select_trees(np.flatnonzero(adapt_trees.output < n_margins).tolist())
    assert 0 < f1_trees.n_trees <= 12 * n_margins  # trees without a split are left out
    assert (miser_trees.feature >= 0).any()
    for name in ("feature", "threshold", "left", "right", "value", "roots", "output"):
        np.testing.assert_array_equal(getattr(f1_trees, name), getattr(miser_trees, name))
    # the gate stays at 0
    np.testing.assert_array_equal(adapt_trees.margins(training_sample.x)[:, -1], 0)


def test_first_order_trees_fit_the_gradient_by_least_squares():
    training_sample = draw_sample(n=400, costs=FeatureCosts.uniform(6))
    growth = Growth(n_rounds=1, num_leaves=2, learning_rate=1.0, newton=False)
    model = grow_gated_trees(training_sample, growth, 0.0, p_full=None, seed=0)
    base_margin = float(model.base[0])
    margin_changes = model.margins(training_sample.x)[:, 0] - base_margin
    smaller_change, larger_change = np.unique(margin_changes)
    for change in (smaller_change, larger_change):
        rows = margin_changes == change
        # a leaf's value is the mean of the weighted negative gradients of its rows
        residuals = training_sample.weight[rows] * (training_sample.y[rows] - expit(base_margin))
        assert change == pytest.approx(residuals.mean(), rel=1e-5)  # float32 leaves


@pytest.mark.parametrize("p_full", [None, 0.3])
def test_the_first_use_of_a_group_pays_its_shared_price_once(p_full):
    # the first feature is worth the shared price; the second is worth only its own price
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3)).astype(np.float32)
    y = (2.0 * x[:, 0] + x[:, 1] + 0.3 * rng.normal(size=800) > 0).astype(np.int64)
    growth = Growth(n_rounds=30, num_leaves=8, learning_rate=0.3)

    def find_used_features(costs, nats):
        training_sample = Sample(x, y, np.ones(800), np.full(800, 0.02), 2, costs)
        gamma = nats * costs.total / costs.n_features  # per unit of cost, not per mean feature cost
        trees = grow_gated_trees(training_sample, growth, gamma, p_full=p_full, warm_up=10, seed=0)
        used_features = set(trees.feature[trees.feature >= 0].tolist())
        return tuple(sorted(used_features - {2}))  # feature 2 is noise, which cheap splits may use

    # the first use of either feature costs 2.1 with both tables of prices
    group_price = FeatureCosts([0.1, 0.1, 0.1], group=["g", "g", None], shared={"g": 2.0})
    own_prices = FeatureCosts([2.1, 2.1, 0.1])
    pairs_of_feature_sets = {
        (find_used_features(own_prices, nats), find_used_features(group_price, nats))
        for nats in np.geomspace(0.02, 0.5, 12)
    }
    assert ((0,), (0, 1)) in pairs_of_feature_sets
    assert pairs_of_feature_sets <= {((0, 1), (0, 1)), ((0,), (0, 1)), ((0,), (0,)), ((), ())}


def test_starts_offload_the_given_share_of_weight():
    """Rows that the start offloads get the probability 0.98, others 0.02."""
    column = np.array([3.0, 1.0, 2.0, 0.0])
    weight = np.array([1.0, 1.0, 2.0, 4.0])  # the two largest values have 3/8 of the weight
    np.testing.assert_allclose(
        Start(0, is_upper=True).offload(column, weight, 3 / 8), [0.98, 0.02, 0.98, 0.02]
    )
    np.testing.assert_allclose(
        Start(0, is_upper=False).offload(column, weight, 0.5), [0.02, 0.02, 0.02, 0.98]
    )


def test_starts_rank_the_feature_of_gate_and_answer_first():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 4)).astype(np.float32)
    # rows with feature 2 above -0.5 can be answered by a linear model on that feature
    y = np.where(x[:, 2] > -0.5, x[:, 2] > 0.5, rng.random(1000) < 0.5).astype(np.int64)
    costs = FeatureCosts([1.0, 1.0, 1.0, 0.0])
    training_sample = Sample(x, y, np.ones(1000), np.zeros(1000), 2, costs)
    starts = best_starts(training_sample, p_full=0.3, n_starts=3)
    assert starts[0] == Start(2, is_upper=False)
    assert {start.feature for start in starts} == {0, 1, 2}  # every model has the free feature
    # the best start becomes the last if its feature has a very high price
    costly_sample = replace(training_sample, costs=FeatureCosts([1.0, 1.0, 1e6, 0.0]))
    assert best_starts(costly_sample, p_full=0.3, n_starts=3)[-1] == Start(2, is_upper=False)
    assert best_starts(training_sample, p_full=0.3, n_starts=0) == []


@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_the_gate_loss_is_zero_at_the_probabilities_of_the_gate(distance):
    g = np.array([-2.0, 0.5, 3.0])
    probabilities = distance.with_probabilities(expit(g))
    np.testing.assert_allclose(probabilities.gate_loss.slope(g), 0, atol=1e-12)
    np.testing.assert_allclose(
        probabilities.gate_loss.value(g) + probabilities.constant, 0, atol=1e-12
    )
    loss_elsewhere = probabilities.gate_loss.value(g + 0.7) + probabilities.constant
    assert (loss_elsewhere > 0).all()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_opt_is_convex_in_the_models(distance, n_classes):
    """Check remark 1 of the paper on segments between random pairs, penalty included.

    ``OPT(t a + (1 - t) b) <= t OPT(a) + (1 - t) OPT(b)`` for pairs a and b and t in [0, 1].
    """
    training_sample = draw_sample(n_classes)
    problem, start, *_ = set_up_m_step(training_sample, distance.curvature_bound)
    rng = np.random.default_rng(0)
    probabilities = distance.with_probabilities(rng.uniform(0.01, 0.99, len(training_sample.x)))
    penalised_problem = replace(problem, gamma=0.1).with_q(probabilities)
    for _ in range(50):
        a, b = (
            LinearPair(rng.normal(size=start.weights.shape), rng.normal(size=start.bias.shape))
            for _ in range(2)
        )
        t = rng.random()
        pair_between = LinearPair(
            t * a.weights + (1 - t) * b.weights, t * a.bias + (1 - t) * b.bias
        )
        objective_of_a, objective_of_b = (penalised_problem.objective(pair) for pair in (a, b))
        objective_on_chord = t * objective_of_a + (1 - t) * objective_of_b
        assert penalised_problem.objective(pair_between) <= objective_on_chord + 1e-12


def compute_row_objectives(q, f1_loss, f0_loss, g):
    """Compute ``(1 - q) f1_loss + q f0_loss + KL(q || sigmoid(g))`` of each row."""
    probabilities = KullbackLeibler().with_probabilities(q)
    divergence = probabilities.gate_loss.value(g) + probabilities.constant
    return (1 - q) * f1_loss + q * f0_loss + divergence


def test_opt_is_an_upper_bound_of_the_log_loss_of_the_system():
    """By Jensen's inequality, ``-log Pr(y | x) <= E_q loss(f_z, y) + KL(q || Pr(z | x; g))``."""
    rng = np.random.default_rng(0)
    f1_loss, f0_loss, g = rng.exponential(size=500), rng.exponential(size=500), rng.normal(size=500)
    offload = expit(g)
    log_loss_of_system = -np.log((1 - offload) * np.exp(-f1_loss) + offload * np.exp(-f0_loss))

    bounds = compute_row_objectives(rng.random(500), f1_loss, f0_loss, g)
    assert (bounds >= log_loss_of_system - 1e-12).all()
    # the bound is tight at q = Pr(z = 0 | x, y), by Bayes' rule
    posterior = offload * np.exp(-f0_loss) / np.exp(-log_loss_of_system)
    tight_bounds = compute_row_objectives(posterior, f1_loss, f0_loss, g)
    np.testing.assert_allclose(tight_bounds, log_loss_of_system, atol=1e-12)
    # without a bound on its mean, q is the posterior
    best_probabilities = KullbackLeibler().q_step(f1_loss, f0_loss, g, 1.0, np.ones(500))
    np.testing.assert_allclose(best_probabilities.q, posterior, atol=1e-9)
