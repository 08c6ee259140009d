"""Test the p-values and limits behind guarantees against exact computations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gatewise_training.operating_points.risk_tests import (
    loss_limits,
    loss_size,
    mean_pvalue,
    rate_pvalue,
)


@given(st.integers(1, 400), st.floats(0.01, 0.99), st.floats(0.001, 0.5))
def test_p_values_of_rates_equal_the_binomial_tail(n, bound, level):
    counts = np.arange(n + 1)
    p_values = rate_pvalue(counts, n, bound)
    probabilities = stats.binom.pmf(counts, n, bound)
    np.testing.assert_allclose(p_values, np.cumsum(probabilities), atol=1e-12)
    assert probabilities[p_values <= level].sum() <= level + 1e-12


def make_fine_grid(n, bound):
    """Make values of the nuisance parameter between those of the search."""
    highest = (1 - bound) / 2
    return highest * np.sin(np.arange(0.001, np.pi / 2, 0.06 / np.sqrt(n * highest))) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "bound", "level"),
    [
        (20, 0.2, 0.1),
        (50, 0.1, 0.05),
        (200, 0.02, 0.05),
        (300, 0.0, 0.05),
        (1000, 0.05, 0.01),
        (1500, 0.01, 0.05),
        (4000, 0.01, 0.05),
        (4000, 0.01, 0.32),
    ],
)
def test_a_loss_at_the_bound_is_certified_with_at_most_the_probability_of_the_level(
    n, bound, level
):
    limits = loss_limits(n, bound, level)
    sizes = loss_size(limits, bound, make_fine_grid(n, bound))
    assert sizes.max() <= level
    if n * bound >= 10:  # the test is nearly exact
        assert sizes.max() >= 0.93 * level
        assert np.median(sizes) >= 0.9 * level


def list_possible_outcomes(n):
    """List all numbers of rows that got worse, and those that got better, of `n` rows."""
    n_worse, n_better = np.mgrid[: n + 1, : n + 1]
    is_possible = n_worse + n_better <= n
    return n_worse[is_possible], n_better[is_possible]


@given(st.floats(0, 0.3), st.floats(0, 0.6), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_losses_above_the_bound_are_certified_with_at_most_that_probability(
    bound, excess, relative_share
):
    """Check all outcomes of 40 rows with trinomial probabilities instead of `loss_size`."""
    n, level = 40, 0.1
    bound = round(bound, 2)  # a round number, as users give it
    loss = min(bound + excess, 1.0)
    # rounded, because scipy overflows at probabilities of 1e-300
    better_share = round(relative_share, 6) * (1 - loss) / 2
    n_worse, n_better = list_possible_outcomes(n)
    limits = loss_limits(n, bound, level)
    passes = n_worse - n_better <= limits[n_worse + n_better]
    outcomes = np.column_stack([n_worse, n_better, n - n_worse - n_better])
    outcome_shares = [loss + better_share, better_share, max(1 - loss - 2 * better_share, 0.0)]
    probabilities = stats.multinomial.pmf(
        outcomes[passes], n, np.array(outcome_shares) / sum(outcome_shares)
    )
    assert probabilities.sum() <= level
    if loss == bound:
        assert probabilities.sum() == pytest.approx(
            loss_size(limits, loss, np.array([better_share]))[0]
        )


@pytest.mark.parametrize(("n", "bound"), [(200, 0.02), (4000, 0.01), (4000, 0.02)])
def test_worse_answers_never_turn_a_refusal_into_a_certificate(n, bound):
    limits = loss_limits(n, bound, 0.05)
    assert (np.diff(limits) <= 0).all()  # a row changes from worse to equal
    assert (np.diff(limits + np.arange(n + 1)) >= 0).all()  # a row changes from equal to better
    with pytest.raises(ValueError):
        limits[0] = 5


def test_the_paired_test_is_as_powerful_as_the_binomial_test_of_a_rate():
    """If no answer is better than the reference, the loss is a rate."""
    limits = loss_limits(4000, 0.01, 0.05)
    counts = np.arange(4001)
    max_errors_by_rate = counts[rate_pvalue(counts, 4000, 0.01) <= 0.05].max()
    assert counts[counts <= limits].max() >= max_errors_by_rate - 1


#: Values and their probabilities.
COST_DISTRIBUTIONS = {
    "exits": ([2, 4, 5, 6, 8, 10, 16], [0.02, 0.25, 0.2, 0.2, 0.15, 0.1, 0.08]),
    "rare high": ([0, 1], [0.97, 0.03]),
    "rare low": ([0, 1], [0.03, 0.97]),
    "three": ([1, 2, 30], [0.6, 0.3, 0.1]),
}


def draw_values(name, n, n_draws, seed=0):
    """Draw samples of `n` values; return them, and mean, lowest and highest value."""
    values, probabilities = map(np.array, COST_DISTRIBUTIONS[name])
    draws = np.random.default_rng(seed).choice(
        values.astype(float), size=(n_draws, n), p=probabilities
    )
    return draws, float(values @ probabilities), float(values.min()), float(values.max())


def compute_p_values(draws, bound, low, high, level=0.05):
    ones = np.ones(len(draws))
    return mean_pvalue(draws, bound, lowest=ones * low, highest=ones * high, level=level)


@pytest.mark.slow
@pytest.mark.parametrize("name", COST_DISTRIBUTIONS)
@pytest.mark.parametrize("n", [40, 700])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_p_values_of_a_mean_at_the_bound_are_not_too_small(name, n, level):
    draws, mean, low, high = draw_values(name, n, 3000)
    p_values = compute_p_values(draws, mean, low, high, level)
    for alpha in (0.01, 0.05, 0.1, 0.2, 0.5):
        # three standard deviations of a share of the draws
        assert (p_values <= alpha).mean() <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 3000)


def test_bets_are_nearly_as_powerful_as_a_test_that_knows_the_variance():
    draws, mean, low, high = draw_values("exits", 2000, 1000)
    for n_errors in (2.0, 2.8):
        p_values = compute_p_values(draws, mean + n_errors * draws.std() / 2000**0.5, low, high)
        # the power of a z-test at this distance, less a small loss
        expected_power = stats.norm.cdf(n_errors - stats.norm.isf(0.05))
        assert (p_values <= 0.05).mean() >= expected_power - 0.07


def test_bets_do_not_depend_on_the_unit_or_origin_of_costs():
    draws, mean, low, high = draw_values("exits", 300, 50)
    bound = mean + 0.3
    p_values = compute_p_values(draws, bound, low, high)
    np.testing.assert_allclose(
        compute_p_values(100 * draws, 100 * bound, 100 * low, 100 * high), p_values
    )
    np.testing.assert_allclose(
        compute_p_values(draws + 7, bound + 7, low + 7, high + 7), p_values, rtol=1e-9
    )


def test_bets_continue_after_losing_nearly_all_wealth():
    draws = np.full((2, 5000), 10.0)
    # every draw is above the bound of 1.5
    assert (compute_p_values(draws, 1.5, 1.0, 10.0) == 1).all()


def test_bounds_at_the_ends_of_the_range_need_no_rows():
    draws, _, low, high = draw_values("exits", 10, 3)
    assert (compute_p_values(draws, high, low, high) == 0).all()
    assert (compute_p_values(draws, low, low, high) == 1).all()
    assert (compute_p_values(draws[:, :1], 9.0, low, high) <= 1).all()
