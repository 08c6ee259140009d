"""Tests that the token bucket bounds the offloads at once and over time.

The times of the tests are those of a monotonic clock in s.
"""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.link.offload_rules import TokenBucket


@pytest.mark.parametrize(
    ("bound", "period_s"), [("3/s", 1), ("3/min", 60), ("3/h", 3600), ("3/d", 86400)]
)
def test_bucket_gets_one_of_three_tokens_in_a_third_of_the_period(bound, period_s):
    token_bucket = TokenBucket.parse(bound)
    assert [token_bucket.take_token(0.0) for _ in range(4)] == [True, True, True, False]
    # Just before and just after a third of the period, so that rounding does not matter.
    assert not token_bucket.take_token(period_s / 3 * 0.999)
    assert token_bucket.take_token(period_s / 3 * 1.001)
    assert not token_bucket.take_token(period_s / 3 * 1.001)


def test_offloads_stay_within_the_bound_over_every_period():
    token_bucket = TokenBucket(10, 60.0)
    rng = np.random.default_rng(0)
    # One instance per second on average, six times as many as the bound of 10 per minute.
    times = np.cumsum(rng.exponential(1.0, 2000))
    offload_times = [now for now in times if token_bucket.take_token(now)]
    # A full bucket has 10 tokens, and 10 / 60 tokens come back per second. Every 20th offload is
    # enough to test all lengths of time.
    for first_index in range(0, len(offload_times), 20):
        for last_index in range(first_index, len(offload_times), 20):
            seconds = offload_times[last_index] - offload_times[first_index]
            n_offloads = last_index - first_index + 1
            assert n_offloads <= 10 + seconds * 10 / 60 + 1e-9  # rounding
    # Offloads are as frequent as allowed, since there is nearly always an instance to offload.
    assert len(offload_times) == pytest.approx(10 + times[-1] * 10 / 60, rel=0.05)


def test_long_pause_fills_the_bucket_up_to_its_capacity():
    token_bucket = TokenBucket(2, 1.0)
    # One offload at first, and two after a pause of 31 years, which would fill it many times.
    are_allowed = [token_bucket.take_token(now) for now in (0.0, 1e9, 1e9, 1e9)]
    assert are_allowed == [True, True, True, False]


def test_returned_token_can_be_taken_again():
    token_bucket = TokenBucket(1, 60.0)
    assert token_bucket.take_token(0.0)
    token_bucket.return_token()
    token_bucket.return_token()  # no effect, because the bucket is full
    assert [token_bucket.take_token(0.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("bound", ["60", "60/y", "-1/h", "1.5/h", "/h", "60/H", " 60/h", "0/h"])
def test_malformed_bound_is_refused(bound):
    with pytest.raises(InputError):
        TokenBucket.parse(bound)
