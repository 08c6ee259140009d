"""Test that the q-step of Adapt meets its optimality conditions.

The equations are above `q_step` and `q_step_log_odds` in `gatewise_training/adapt/qstep.py`. q are
the free offload probabilities, t their log odds, g the margins of the gate, and beta is the
multiplier of the bound `p_full` on the mean of q. f0 is the high-cost model, and f1 the model on
the device.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, logit

from gatewise.errors import InputError
from gatewise_training.adapt.qstep import KullbackLeibler, q_step, q_step_log_odds

#: Smallest difference of losses at which the objective ``d sigmoid(t) + (t - g)^2`` of a row can
#: have two minima, in nats: its second derivative is ``2 + d sigmoid''(t)``, and the smallest value
#: of ``sigmoid''`` is ``-1 / (6 sqrt(3))``. It is 20.78.
TWO_MINIMA_NATS = 12 * math.sqrt(3)
N_ROWS = 12
WEIGHTS = arrays(np.float64, N_ROWS, elements=st.floats(0.1, 5.0))


def losses_up_to(highest):
    """Make the strategy of one loss in nats for each row."""
    return arrays(np.float64, N_ROWS, elements=st.floats(0, highest))


@given(losses_up_to(20), losses_up_to(20), WEIGHTS, st.floats(0.01, 1.0))
def test_q_step_meets_the_kkt_conditions(edge_loss, offload_loss, weight, p_full):
    q = q_step(edge_loss, offload_loss, p_full, weight)
    mean_q = np.average(q, weights=weight)
    assert mean_q <= p_full + 1e-8
    # near 0 and 1 the log odds of q, from which beta is computed, lose their digits
    is_inner = (q > 1e-6) & (q < 1 - 1e-6)
    if not is_inner.any():
        return
    # all rows have one multiplier beta: log odds of q = edge_loss - offload_loss - beta
    beta = float(np.median((edge_loss - offload_loss)[is_inner] - logit(q[is_inner])))
    np.testing.assert_allclose(q, expit(edge_loss - offload_loss - beta), rtol=0, atol=1e-8)
    assert beta >= -1e-8
    assert abs(beta * (p_full - mean_q)) <= 1e-8


@settings(deadline=None)
@given(
    losses_up_to(20), losses_up_to(20), WEIGHTS,
    arrays(np.float64, N_ROWS, elements=st.floats(-6, 6)), st.floats(0.02, 1.0),
)  # fmt: skip
def test_q_step_of_log_odds_meets_the_kkt_conditions(edge_loss, offload_loss, weight, g, p_full):
    t = q_step_log_odds(edge_loss, offload_loss, g, p_full, weight)
    q = expit(t)
    curvature = q * (1 - q)
    mean_q = np.average(q, weights=weight)
    assert mean_q <= p_full + 1e-8
    # The derivative of (offload_loss - edge_loss + beta) sigmoid(t) + (t - g)^2 is 0, with one
    # beta for all rows, which is computed from the row where it is best conditioned.
    is_curved = curvature > 1e-2
    if not is_curved.any():
        return
    row = int(np.argmax(curvature))
    beta = float(2 * (g - t)[row] / curvature[row] - (offload_loss - edge_loss)[row])
    derivatives = (offload_loss - edge_loss + beta) * curvature + 2 * (t - g)
    np.testing.assert_allclose(derivatives, 0, atol=1e-8)
    assert beta >= -1e-8
    loss_gap = offload_loss - edge_loss + beta
    # below the limit the objective has one minimum: no row jumps, so the slackness is exact
    if np.abs(loss_gap).max() < TWO_MINIMA_NATS - 0.08:
        assert abs(beta * (p_full - mean_q)) <= 1e-8
    # t is the global minimum of each row
    grid = np.linspace(-20, 20, 4001)[:, None]
    lowest_objective = (loss_gap * expit(grid) + (grid - g) ** 2).min(axis=0)
    assert (loss_gap * q + (t - g) ** 2 <= lowest_objective + 1e-7).all()


def test_without_a_bound_the_log_odds_are_the_gate_plus_the_loss_difference():
    """Minimise ``(1 - q) keep + q offload + KL(q || sigmoid(g))`` in closed form."""
    edge_loss = np.array([0.0, 2.0, 0.5, 3.0])
    offload_loss = np.array([1.0, 0.3, 0.5, 0.0])
    g = np.array([-1.5, 0.0, 2.0, 0.7])
    probabilities = KullbackLeibler().q_step(edge_loss, offload_loss, g, 1.0, np.ones(4))
    np.testing.assert_allclose(probabilities.q, expit(edge_loss - offload_loss + g), rtol=1e-12)


def test_q_step_at_the_limits_of_p_full():
    edge_loss, offload_loss = np.array([1.0, 2.0]), np.zeros(2)
    assert q_step(edge_loss, offload_loss, 0.0).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(q_step(edge_loss, offload_loss, 1.0), expit(edge_loss))
    with pytest.raises(InputError, match="p_full"):
        q_step(edge_loss, offload_loss, 1.5)


def test_a_row_of_weight_two_equals_two_rows():
    edge_loss, offload_loss = np.array([3.0, 1.0, 0.0]), np.zeros(3)
    q_of_repeated_row = q_step(np.repeat(edge_loss, [2, 1, 1]), np.zeros(4), 0.3)
    q_of_weighted_row = q_step(edge_loss, offload_loss, 0.3, np.array([2.0, 1.0, 1.0]))
    np.testing.assert_allclose(q_of_weighted_row, q_of_repeated_row[[0, 2, 3]], atol=1e-10)


SIGNS = pytest.mark.parametrize("sign", [1.0, -1.0])


def compute_objective(t, gap, g):
    """Compute ``gap sigmoid(t) + (t - g)^2``, where f0's loss exceeds f1's by `gap` nats."""
    return gap * expit(t) + (t - g) ** 2


def solve_log_odds(gap, g):
    """Compute the log odds of the q-step without a bound on the mean."""
    return q_step_log_odds(np.maximum(-gap, 0.0), np.maximum(gap, 0.0), g, 1.0)


@pytest.mark.slow
# 20.7 is below TWO_MINIMA_NATS and 20.8 above it.
@SIGNS
@pytest.mark.parametrize("gap", [20.7, 20.8, 21.5, 30.0, 60.0, 200.0])
def test_log_odds_are_the_lower_minimum_if_losses_differ_by_over_20_8_nats(gap, sign):
    g = np.linspace(-3.0, gap / 8.0 + 3.0, 400)
    t = sign * solve_log_odds(np.full(400, sign * gap), sign * g)
    grid = np.linspace(-gap / 8.0 - 3.0, gap / 8.0 + 4.0, 20_001)
    lowest_objective = compute_objective(grid[:, None], gap, g).min(axis=0)
    assert (compute_objective(t, gap, g) <= lowest_objective + 1e-9).all()
    slope = gap * expit(t) * expit(-t) + 2.0 * (t - g)
    np.testing.assert_allclose(slope, 0.0, atol=1e-9)


@SIGNS
def test_rows_with_two_equal_minima_stay_with_f1(sign):
    gap = 40.0  # nats, so that the objective of a row has two minima
    low, high = 0.0, 8.0
    for _ in range(60):  # bisection finds the g at which both minima are equal
        g = 0.5 * (low + high)
        answers_locally = solve_log_odds(np.array([gap]), np.array([g]))[0] < 0.0
        low, high = (g, high) if answers_locally else (low, g)
    # a row with the lower g has its minimum on f1's side, the neighbour on f0's side
    t_below, t_above = solve_log_odds(np.full(2, gap), np.array([low, high]))
    assert t_below < 0.0 < t_above
    assert compute_objective(t_below, gap, low) == pytest.approx(
        compute_objective(t_above, gap, low), abs=1e-9
    )
    t_mirrored = solve_log_odds(np.full(2, -gap), np.array([-low, -high]))
    np.testing.assert_allclose(t_mirrored, [-t_below, -t_above], atol=1e-12)


def test_a_row_that_jumps_over_the_bound_stays_below_it():
    """No beta gives a row of 60 nats a mean near 0.5, so the lower minimum is chosen."""
    edge_loss, offload_loss, g = np.array([60.0]), np.zeros(1), np.zeros(1)
    (t,) = q_step_log_odds(edge_loss, offload_loss, g, 0.5)
    grid = np.linspace(-10, 10, 20_001)
    assert expit(t) < 0.5
    # t is optimal for a beta at which the minimum above the bound is equal
    beta = -2.0 * t / (expit(t) * expit(-t)) + 60.0
    above_bound = grid[grid > 0]
    assert compute_objective(t, beta - 60.0, 0.0) == pytest.approx(
        compute_objective(above_bound, beta - 60.0, 0.0).min(), abs=1e-4
    )


def test_a_gate_whose_probabilities_round_to_1_meets_the_bound():
    """The mean of q then does not change with a small beta, so Newton's method has no step."""
    losses = np.zeros(4)
    t = q_step_log_odds(losses, losses, np.full(4, 500.0), 0.5)
    assert np.isfinite(t).all()
    assert expit(t).mean() <= 0.5 + 1e-8
