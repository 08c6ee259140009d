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
def test_rate_pvalues_are_the_exact_tail_and_never_too_small(n, bound, level):
    counts = np.arange(n + 1)
    p = rate_pvalue(counts, n, bound)
    chance = stats.binom.pmf(counts, n, bound)
    np.testing.assert_allclose(p, np.cumsum(chance), atol=1e-12)
    assert chance[p <= level].sum() <= level + 1e-12


def fine_grid(n, bound):
    """Nuisance values that the search did not look at."""
    most = (1 - bound) / 2
    return most * np.sin(np.arange(0.001, np.pi / 2, 0.06 / np.sqrt(n * most))) ** 2


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
def test_a_loss_at_the_bound_is_certified_no_more_often_than_promised(n, bound, level):
    limits = loss_limits(n, bound, level)
    sizes = loss_size(limits, bound, fine_grid(n, bound))
    assert sizes.max() <= level
    if n * bound >= 10:  # and nearly as often: nothing is wasted
        assert sizes.max() >= 0.93 * level
        assert np.median(sizes) >= 0.9 * level


def every_outcome(n):
    worse, better = np.mgrid[: n + 1, : n + 1]
    possible = worse + better <= n
    return worse[possible], better[possible]


@given(st.floats(0, 0.3), st.floats(0, 0.6), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_no_worse_loss_is_certified_more_often(bound, above, share):
    """Every outcome of 40 rows is weighed by the trinomial itself, not by `loss_size`."""
    n, level = 40, 0.1
    loss = min(bound + above, 1.0)
    better = round(share, 6) * (1 - loss) / 2  # scipy overflows at chances of 1e-300
    worse_seen, better_seen = every_outcome(n)
    limits = loss_limits(n, round(bound, 2), level)
    if loss < round(bound, 2):
        return
    passes = worse_seen - better_seen <= limits[worse_seen + better_seen]
    seen = np.column_stack([worse_seen, better_seen, n - worse_seen - better_seen])
    chances = [loss + better, better, max(1 - loss - 2 * better, 0.0)]
    chance = stats.multinomial.pmf(seen[passes], n, np.array(chances) / sum(chances))
    assert chance.sum() <= level
    if loss == round(bound, 2):
        assert chance.sum() == pytest.approx(loss_size(limits, loss, np.array([better]))[0])


@pytest.mark.parametrize(("n", "bound"), [(200, 0.02), (4000, 0.01), (4000, 0.02)])
def test_rows_that_get_worse_never_earn_a_certificate(n, bound):
    limits = loss_limits(n, bound, 0.05)
    assert (np.diff(limits) <= 0).all()  # worse -> equal
    assert (np.diff(limits + np.arange(n + 1)) >= 0).all()  # equal -> better
    with pytest.raises(ValueError):
        limits[0] = 5


def test_the_paired_test_costs_no_more_than_the_binomial_where_that_is_exact():
    """If the system alone is never right, losses are a plain rate."""
    limits = loss_limits(4000, 0.01, 0.05)
    counts = np.arange(4001)
    by_rate = counts[rate_pvalue(counts, 4000, 0.01) <= 0.05].max()
    assert counts[counts <= limits].max() >= by_rate - 1


DISTRIBUTIONS = {
    "exits": ([2, 4, 5, 6, 8, 10, 16], [0.02, 0.25, 0.2, 0.2, 0.15, 0.1, 0.08]),
    "rare high": ([0, 1], [0.97, 0.03]),
    "rare low": ([0, 1], [0.03, 0.97]),
    "three": ([1, 2, 30], [0.6, 0.3, 0.1]),
}


def drawn(name, n, times, seed=0):
    values, chances = map(np.array, DISTRIBUTIONS[name])
    x = np.random.default_rng(seed).choice(values.astype(float), size=(times, n), p=chances)
    return x, float(values @ chances), float(values.min()), float(values.max())


def pvalues(x, bound, low, high, level=0.05):
    edge = np.ones(len(x))
    return mean_pvalue(x, bound, lowest=edge * low, highest=edge * high, level=level)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [40, 700])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_pvalues_of_a_mean_at_the_bound_are_never_too_small(name, n, level):
    x, mean, low, high = drawn(name, n, 3000)
    p = pvalues(x, mean, low, high, level)
    for a in (0.01, 0.05, 0.1, 0.2, 0.5):
        assert (p <= a).mean() <= a + 3 * np.sqrt(a * (1 - a) / 3000)


def test_a_bet_rejects_nearly_as_often_as_a_test_that_knows_the_variance():
    x, mean, low, high = drawn("exits", 2000, 1000)
    for errors in (2.0, 2.8):
        p = pvalues(x, mean + errors * x.std() / 2000**0.5, low, high)
        assert (p <= 0.05).mean() >= stats.norm.cdf(errors - stats.norm.isf(0.05)) - 0.07


def test_a_bet_does_not_depend_on_the_unit_of_cost():
    x, mean, low, high = drawn("exits", 300, 50)
    bound = mean + 0.3
    p = pvalues(x, bound, low, high)
    np.testing.assert_allclose(pvalues(100 * x, 100 * bound, 100 * low, 100 * high), p)
    np.testing.assert_allclose(pvalues(x + 7, bound + 7, low + 7, high + 7), p, rtol=1e-9)


def test_bets_continue_after_losing_nearly_all_wealth():
    x = np.full((2, 5000), 10.0)
    assert (pvalues(x, 1.5, 1.0, 10.0) == 1).all()


def test_bounds_outside_the_range_need_no_rows():
    x, _, low, high = drawn("exits", 10, 3)
    assert (pvalues(x, high, low, high) == 0).all()
    assert (pvalues(x, low, low, high) == 1).all()
    assert (pvalues(x[:, :1], 9.0, low, high) <= 1).all()
