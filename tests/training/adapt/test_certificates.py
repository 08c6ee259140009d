"""Test the linear methods of the Adapt family against their theory.

The tests check descent, optimality conditions, shared prices, convexity and a bound.

The symbols are those of the paper (NIPS 2017): f0 and f1 are the high-cost and the low-cost model,
g is the gate's margin, q are the free offload probabilities, whose mean is at most `p_full`, and
gamma is the weight of the penalty. z are the features, scaled to mean 0 and variance 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import expit

from gatewise_training import FeatureCosts
from gatewise_training.adapt import lin
from gatewise_training.adapt.alternation import (
    alternate,
    featureless_pair,
    set_up_m_step,
)
from gatewise_training.adapt.lin import AdaptLin, fit_path
from gatewise_training.adapt.lstsq import AdaptLstsq
from gatewise_training.adapt.m_step import LinearPair, MStep
from gatewise_training.adapt.qstep import KullbackLeibler, LogOdds
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.losses import log_loss
from tests.support.adapt_samples import PRICES, draw_sample

pytestmark = pytest.mark.slow

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
    m_step = penalised_problem.with_q(probabilities)
    assert m_step.proximal_step(m_step.evaluate(pair)).residual <= 10 * tol
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
def test_above_the_critical_penalty_only_free_features_are_acquired(
    distance, n_classes, monkeypatch
):
    monkeypatch.setattr(lin, "TOLERANCE", 1e-7)
    monkeypatch.setattr(lin, "MAX_ALTERNATIONS", 1000)
    method_class = AdaptLstsq if isinstance(distance, LogOdds) else AdaptLin
    # penalties are shares of the critical penalty
    method = method_class(penalties=(1.01, 0.9), refit=False)
    models = fit_path(draw_sample(n_classes), method, p_full=0.4)
    # feature 3 has no own price either, but its group has a shared price
    is_free = np.array([False, False, False, False, False, True])
    weights_above, weights_below = (model.weights for model in models)
    assert not weights_above[~is_free].any()
    assert weights_above[is_free].any()
    assert weights_below[~is_free].any()


@dataclass(frozen=True)
class TwoFeatureFit:
    """Labels by the sum of two features, and the pair that acquires neither."""

    training_sample: Sample
    problem: MStep
    featureless: LinearPair
    critical_penalty: float  # smallest gamma at which no feature is acquired

    #: Largest share of offloaded rows.
    P_FULL: ClassVar[float] = 0.2

    @classmethod
    def with_prices(cls, costs):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(400, 2)).astype(np.float32)
        y = (x.sum(axis=1) + 0.5 * rng.normal(size=400) > 0).astype(np.int64)
        training_sample = Sample(x, y, np.ones(400), np.full(400, 0.05), 2, costs)
        problem, start, *_ = set_up_m_step(training_sample)
        featureless, critical_penalty = featureless_pair(
            problem, start, training_sample.f0_loss, cls.P_FULL, DISTANCES["kl"]
        )
        return cls(training_sample, problem, featureless, critical_penalty)

    def find_acquired_features(self, gamma):
        """Find the features that the fit acquires, as a mask, if the penalty has weight `gamma`."""
        pair, _ = alternate(
            replace(self.problem, gamma=gamma),
            self.training_sample.f0_loss,
            self.P_FULL,
            self.featureless,
            tol=1e-9,
            max_steps=500,
        )
        return pair.weights.any(axis=1)


def test_group_lasso_pays_a_shared_price_once():
    # the two features are worth one price together, but not one price each
    shared_fit = TwoFeatureFit.with_prices(
        FeatureCosts([0.0, 0.0], group=["g", "g"], shared={"g": 1.0})
    )
    own_fit = TwoFeatureFit.with_prices(FeatureCosts([1.0, 1.0]))
    # With equal gradients d of both features, a penalty on the norm of both weights is critical
    # at sqrt(2) d, and one on each weight at d.
    assert shared_fit.critical_penalty > 1.2 * own_fit.critical_penalty
    penalty_between = 0.5 * (shared_fit.critical_penalty + own_fit.critical_penalty)
    assert shared_fit.find_acquired_features(penalty_between).all()
    assert not own_fit.find_acquired_features(penalty_between).any()


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
