"""Comparison of a release with other versions, alone and in simulated rollouts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as t_distribution

from gatewise_cloud.broker.comparison import (
    ALPHA,
    EFFECT,
    EFFECT_IN_STANDARD_ERRORS,
    Comparison,
    GroupShare,
    answers_to_detect,
)
from tests.support.simulated_rollouts import simulate_rollouts

#: Simulated fleets, so that a probability of 5 % is estimated with a standard error of 2 %.
N_FLEETS = 150


def test_one_device_counts_no_more_than_four_times_the_median():
    equal_devices = [(20.0, 1000.0)] * 9
    assert GroupShare.from_counts(equal_devices).share == pytest.approx(0.02)
    # The tenth device counts 4,000 of its answers, all of them cases.
    unequal_devices = [*equal_devices, (1e6, 1e6)]
    assert GroupShare.from_counts(unequal_devices).share == pytest.approx((180 + 4000) / 13000)
    assert all(math.isnan(number) for number in GroupShare.from_counts(equal_devices[:2])[:2])


def test_evidence_is_zero_without_an_excess_and_grows_with_it():
    baseline = GroupShare(0.05, 0.002, 75)
    evidences = [
        Comparison(GroupShare(share, 0.004, 25), baseline).evidence(0.01)
        for share in (0.05, 0.06, 0.07, 0.08, 0.09)
    ]
    assert evidences[:2] == [0.0, 0.0]
    assert evidences == sorted(evidences)
    # The threshold of one of three metrics is 3 / ALPHA.
    assert evidences[2] < 3 / ALPHA < evidences[4]
    # Five devices estimate the standard error badly, so that the same excess is weaker evidence.
    assert Comparison(GroupShare(0.09, 0.004, 5), baseline).evidence(0.01) < evidences[4]
    assert Comparison(GroupShare.from_counts([]), baseline).evidence(0.01) == 0.0


def test_the_standard_error_of_a_share_follows_its_formula():
    group = GroupShare.from_counts([(10.0, 1000.0), (20.0, 1000.0), (60.0, 1000.0)])
    assert group.share == pytest.approx(0.03)
    # (10 - 30)^2 + (20 - 30)^2 + (60 - 30)^2 = 1400, and m / (m - 1) = 3 / 2.
    assert group.standard_error == pytest.approx(math.sqrt(1400 * 3 / 2) / 3000)


def test_the_evidence_is_the_mean_likelihood_ratio_of_the_alternatives():
    comparison = Comparison(GroupShare(0.07, 0.003, 10**6), GroupShare(0.05, 0.004, 10**6))
    # The excess of 0.02 has the standard error sqrt(0.003^2 + 0.004^2) = 0.005, so that it is
    # z = 4 standard errors. The alternatives u > 0 have a half-normal density with the variance
    # w = (EFFECT / 0.005)^2 = 16, and the likelihood ratio exp(z u - u^2 / 2).
    u = np.linspace(0.0, 40.0, 100_001)
    density = 2.0 * np.exp(-u * u / (2.0 * 16.0)) / math.sqrt(2.0 * math.pi * 16.0)
    likelihood_ratio = np.exp(4.0 * u - u * u / 2.0)
    mean_ratio = float((density * likelihood_ratio).sum() * (u[1] - u[0]))
    assert comparison.evidence(0.0) == pytest.approx(mean_ratio, rel=1e-2)


def test_the_information_fraction_of_few_devices_uses_student_t():
    group = GroupShare(0.05, 0.01 / math.sqrt(2.0), 3)  # two groups of 3: 4 degrees of freedom
    information_fraction = Comparison(group, group).information_fraction
    # The z with the tail probability of Student's t of the effect, whose standard error is 0.01.
    z = norm.isf(t_distribution.sf(EFFECT / 0.01, 4.0))
    assert math.sqrt(information_fraction) * EFFECT_IN_STANDARD_ERRORS == pytest.approx(z, rel=0.02)


def test_answers_to_detect_agrees_with_the_variance_of_independent_answers():
    rng = np.random.default_rng(0)
    counts = rng.binomial(1000, 0.05, 400)
    n_answers = answers_to_detect([(float(count), 1000.0) for count in counts])
    # A share p of n independent answers has the variance p (1 - p) / n. It must be
    # (EFFECT / 4.9)^2, see EFFECT_IN_STANDARD_ERRORS.
    expected_answers = 0.05 * 0.95 * (EFFECT_IN_STANDARD_ERRORS / EFFECT) ** 2
    assert n_answers == pytest.approx(expected_answers, rel=0.15)


def test_one_device_with_many_answers_hardly_changes_how_many_are_needed():
    counts = [(10.0 + i % 5, 1000.0) for i in range(20)]
    n_answers = answers_to_detect([*counts, (12_000.0, 1e6)])
    assert n_answers == pytest.approx(answers_to_detect(counts), rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("worse_by", "n_offline"), [(0.0, 0), (0.01, 30)])
def test_at_most_5_percent_of_equal_releases_are_withdrawn(worse_by, n_offline):
    outcomes = Counter(
        outcome
        for outcome, _ in simulate_rollouts(0.0, worse_by, n_offline=n_offline, n_fleets=N_FLEETS)
    )
    assert outcomes["done"] >= 0.95 * N_FLEETS, outcomes


@pytest.mark.slow
def test_a_release_three_points_worse_is_withdrawn_before_half_of_the_fleet_has_it():
    rollouts = simulate_rollouts(0.03, 0.01, n_fleets=N_FLEETS)
    n_before_half = sum(outcome == "withdrawn" and share < 0.5 for outcome, share in rollouts)
    # An excess of 0.02 above the limit is detected with probability 0.95.
    assert n_before_half >= 0.9 * N_FLEETS, Counter(outcome for outcome, _ in rollouts)


def test_good_and_bad_releases_end_as_expected_in_a_few_fleets():
    assert {outcome for outcome, _ in simulate_rollouts(0.0, 0.01, n_fleets=5)} == {"done"}
    rollouts = simulate_rollouts(0.08, 0.01, n_fleets=5)
    assert {outcome for outcome, _ in rollouts} == {"withdrawn"}
    assert max(share for _, share in rollouts) < 0.5
