"""Steps of Adapt, compared with optimality conditions and finite differences.

A pair is the low-cost model f1 and the gate, both linear in the features z. gamma is the weight of
the penalty of the features' prices.
"""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.adapt.group_lasso import GroupLasso
from gatewise_training.adapt.m_step import Iterate, LinearPair, MStep, curvature_bound
from gatewise_training.adapt.prox_newton import solve
from gatewise_training.learners.losses import log_loss, log_loss_gradient, log_loss_hessian, one_hot

COSTS = FeatureCosts(
    [1.0, 0.5, 2.0, 0.0, 1.0], group=["a", "a", None, "b", "b"], shared={"a": 1.5, "b": 0.7}
)


@pytest.mark.parametrize("n_margins", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_losses_of_an_iterate_equal_the_log_loss_functions(n_margins, scale):
    rng = np.random.default_rng(0)
    outputs = scale * rng.normal(size=(60, n_margins + 1))
    target = one_hot(rng.integers(0, max(2, n_margins), 60), max(2, n_margins))
    iterate = Iterate(
        LinearPair(np.zeros((1, n_margins + 1)), np.zeros(n_margins + 1)), outputs, target
    )
    np.testing.assert_allclose(
        iterate.f1_loss, log_loss(outputs[:, :-1], target), rtol=1e-12, atol=1e-15
    )
    expected_slope = log_loss_gradient(outputs[:, :-1], target)
    np.testing.assert_allclose(iterate.f1_slope, expected_slope, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_prox_minimises_its_problem(seed):
    rng = np.random.default_rng(seed)
    v, step = rng.normal(size=(5, 3)), 0.4

    # prox(v) minimises 1/2 |u - v|^2 + step * penalty(u)
    def compute_objective(u):
        return 0.5 * np.sum((u - v) ** 2) + step * GroupLasso.from_costs(COSTS).value(u)

    minimiser = GroupLasso.from_costs(COSTS).prox(v, step)
    for scale in (1e-1, 1e-3):
        for _ in range(200):
            neighbour = minimiser + scale * rng.normal(size=v.shape)
            assert compute_objective(neighbour) >= compute_objective(minimiser) - 1e-12


@pytest.mark.parametrize("n_classes", [2, 4])
def test_derivatives_match_finite_differences(n_classes):
    """Central differences have an error of about step^2, here 1e-10, and of rounding."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, 6)
    target = one_hot(y, n_classes)
    margins = rng.normal(size=target.shape)
    for column in range(margins.shape[1]):
        raised_margins, lowered_margins = margins.copy(), margins.copy()
        raised_margins[:, column] += 1e-5
        lowered_margins[:, column] -= 1e-5
        slope = (log_loss(raised_margins, target) - log_loss(lowered_margins, target)) / 2e-5
        np.testing.assert_allclose(log_loss_gradient(margins, target)[:, column], slope, atol=1e-8)
        curvature = (
            log_loss_gradient(raised_margins, target)[:, column]
            - log_loss_gradient(lowered_margins, target)[:, column]
        )
        np.testing.assert_allclose(
            log_loss_hessian(margins)[:, column], curvature / 2e-5, atol=1e-8
        )


def make_m_step(seed, n_classes=2, gamma=0.01, n=120):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5))
    y = (z @ rng.normal(size=(5, n_classes)) + rng.normal(size=(n, n_classes))).argmax(axis=1)
    target = one_hot(y, n_classes)
    weight = np.ones(n)
    return MStep(
        z, target, rng.random(n) * 0.6, weight, GroupLasso.from_costs(COSTS), gamma,
        curvature_bound(z, weight, target.shape[1]),
    )  # fmt: skip


def zero_pair(m_step):
    n_columns = m_step.target.shape[1] + 1
    return LinearPair(np.zeros((5, n_columns)), np.zeros(n_columns))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.05])
def test_m_step_reaches_its_optimum(n_classes, gamma):
    m_step = make_m_step(1, n_classes, gamma)
    optimum = solve(m_step, zero_pair(m_step), tol=1e-9, max_iter=20000)
    assert m_step.proximal_step(m_step.evaluate(optimum)).residual < 1e-8
    rng = np.random.default_rng(0)
    for _ in range(100):
        neighbour = LinearPair(
            optimum.weights + 0.01 * rng.normal(size=optimum.weights.shape),
            optimum.bias + 0.01 * rng.normal(size=optimum.bias.shape),
        )
        assert m_step.objective(neighbour) >= m_step.objective(optimum) - 1e-12


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_proximal_step_without_a_penalty_is_the_gradient_over_the_curvature(n_classes):
    m_step = make_m_step(2, n_classes, gamma=0.0)
    pair = zero_pair(m_step)
    proximal_step = m_step.proximal_step(m_step.evaluate(pair))
    gradient = m_step.gradient(pair)
    np.testing.assert_allclose(proximal_step.endpoint.weights, -gradient.weights / m_step.lipschitz)
    np.testing.assert_allclose(proximal_step.endpoint.bias, -gradient.bias / m_step.lipschitz)
    largest_derivative = max(np.abs(gradient.weights).max(), np.abs(gradient.bias).max())
    assert proximal_step.residual == pytest.approx(largest_derivative)


def draw_pair(rng, n_margins):
    return LinearPair(rng.normal(size=(5, n_margins + 1)), rng.normal(size=n_margins + 1))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_curvatures_of_an_iterate_are_the_differences_of_its_slopes(n_classes):
    m_step = make_m_step(4, n_classes)
    pair = draw_pair(np.random.default_rng(5), m_step.target.shape[1])
    iterate = m_step.evaluate(pair)
    for margin in range(m_step.target.shape[1]):
        slopes = []
        for shift in (1e-5, -1e-5):  # of one margin of all rows
            shifted_bias = pair.bias.copy()
            shifted_bias[margin] += shift
            shifted_iterate = m_step.evaluate(LinearPair(pair.weights, shifted_bias))
            slopes.append(shifted_iterate.f1_slope[:, margin])
        difference = (slopes[0] - slopes[1]) / 2e-5
        np.testing.assert_allclose(iterate.f1_curvature[:, margin], difference, atol=1e-8)


def test_an_extrapolated_iterate_continues_the_line_through_both_pairs():
    m_step = make_m_step(6)
    rng = np.random.default_rng(7)
    previous_pair, pair = draw_pair(rng, 1), draw_pair(rng, 1)
    iterate = m_step.evaluate(pair).extrapolate(m_step.evaluate(previous_pair), 0.3)
    np.testing.assert_allclose(
        iterate.pair.weights, 1.3 * pair.weights - 0.3 * previous_pair.weights
    )
    np.testing.assert_allclose(iterate.pair.bias, 1.3 * pair.bias - 0.3 * previous_pair.bias)
    np.testing.assert_allclose(iterate.outputs, iterate.pair.outputs(m_step.z))


@pytest.mark.parametrize(
    ("n_margins", "gate_bound", "expected_bound"),
    # the second derivative of the log loss is at most 1/4 for one margin and 1/2 for several
    [(1, 0.25, 0.25), (1, 0.1, 0.25), (3, 0.25, 0.5), (1, 2.0, 2.0)],
)
def test_the_curvature_bound_is_the_larger_bound_of_loss_and_gate(
    n_margins, gate_bound, expected_bound
):
    """If all features are 0, only the intercept has a second moment, which is 1."""
    z = np.zeros((4, 2))
    assert curvature_bound(z, np.ones(4), n_margins, gate_bound) == pytest.approx(expected_bound)
