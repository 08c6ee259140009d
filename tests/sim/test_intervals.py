"""Tests of intervals by batch means."""

import numpy as np
import pytest

from gatewise_sim.intervals import N_BATCHES, Batches, widen_share_interval
from gatewise_sim.report.policy_result import Estimate

#: 97.5 % quantile of Student's t distribution with 19 degrees of freedom.
_T_QUANTILE = 2.093


def make_batches(*sizes: int) -> Batches:
    """Make batches with the given numbers of instances."""
    return Batches((np.repeat(np.arange(len(sizes)), sizes),))


def test_half_width_is_the_quantile_times_the_standard_error_of_batch_means():
    """Batch means 1 and 3 differ from 2 by 1 each: the squared standard error is 2 / (2 * 1)."""
    estimate = make_batches(2, 2).mean(np.array([0.0, 2.0, 3.0, 3.0]))
    assert estimate.value == 2.0
    assert (estimate.low, estimate.high) == pytest.approx((0.0, 2.0 + _T_QUANTILE))
    # An interval of values above 0 is not cut at 0.
    distant_estimate = make_batches(2, 2).mean(np.array([99.0, 101.0, 102.0, 102.0]))
    assert (distant_estimate.low, distant_estimate.high) == pytest.approx(
        (101.0 - _T_QUANTILE, 101.0 + _T_QUANTILE)
    )


def test_batches_are_weighted_by_their_numbers_of_instances():
    """Means 1, 1 and 4 of 1, 1 and 2 instances: v = 2.5, w_b (v_b - v) = -1.125, -1.125, 2.25."""
    estimate = make_batches(1, 1, 2).mean(np.array([1.0, 1.0, 4.0, 4.0]), upper_limit=100.0)
    half_width = _T_QUANTILE * np.sqrt((2 * 1.125**2 + 2.25**2) / (3 * 2))
    assert estimate.high - estimate.value == pytest.approx(half_width)


def test_interval_of_one_batch_has_no_width():
    estimate = make_batches(4).mean(np.array([1.0, 2.0, 3.0, 4.0]))
    assert estimate.low == estimate.high == 2.5
    assert make_batches(4).mean(np.ones(4), np.zeros(4)) is None


def test_interval_of_a_share_is_at_least_as_wide_as_wilsons():
    """Wilson's interval is (p + z^2 / 2n +- z sqrt(p (1 - p) / n + (z / 2n)^2)) / (1 + z^2 / n).

    For p = 0.5, n = 100 and z = 1.96 it reaches from 0.40383 to 0.59617.
    """
    narrow_estimate = Estimate(value=0.5, low=0.5, high=0.5)
    wilson_estimate = widen_share_interval(narrow_estimate, 100)
    assert (wilson_estimate.low, wilson_estimate.high) == pytest.approx(
        (0.40383, 0.59617),
        abs=1e-5,  # the digits above
    )
    wide_estimate = Estimate(value=0.5, low=0.1, high=0.9)
    assert widen_share_interval(wide_estimate, 100) == wide_estimate


def test_nineteen_of_twenty_intervals_hold_the_mean():
    """Of 400 runs of independent values, the standard error of the share is 1.1 %.

    It is sqrt(0.95 * 0.05 / 400); the tolerance is about three of them.
    """
    rng = np.random.default_rng(0)
    n_inside = 0
    for _ in range(400):
        values = rng.exponential(1.0, 2000)
        estimate = Batches((np.arange(2000) % N_BATCHES,)).mean(values)
        n_inside += estimate.low <= 1.0 <= estimate.high
    assert n_inside / 400 == pytest.approx(0.95, abs=0.035)


def test_nineteen_of_twenty_intervals_hold_the_quantile():
    """Of 200 runs the standard error of the share is 1.5 %; the tolerance is about three."""
    rng = np.random.default_rng(1)
    n_inside = 0
    for _ in range(200):
        values = rng.uniform(0.0, 1.0, 4000)
        batches = Batches((np.arange(4000) % N_BATCHES,))
        estimate = batches.quantile(values, 0.5, np.ones(4000, bool))
        n_inside += estimate.low <= 0.5 <= estimate.high
    assert n_inside / 200 == pytest.approx(0.95, abs=0.05)


def test_intervals_of_quantiles_begin_at_the_smallest_value_or_above():
    """Batches of a few long and many short times differ by more than the quantile."""
    values = np.where(np.arange(40) % 20 == 0, 500.0, 8.0)
    batches = Batches((np.arange(40) % 20,))
    estimate = batches.quantile(values, 0.9, np.ones(40, bool))
    assert estimate.value == 8.0
    assert estimate.low == 8.0
    assert estimate.high > 50.0
