"""The token bucket: what may be offloaded at once, and in the long run."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.link.offload_rules import OffloadBudget


@pytest.mark.parametrize(
    ("text", "seconds"), [("3/s", 1), ("3/min", 60), ("3/h", 3600), ("3/d", 86400)]
)
def test_a_token_comes_back_after_its_part_of_the_time(text, seconds):
    budget = OffloadBudget.parse(text)
    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.take(seconds / 3 * 0.999)
    assert budget.take(seconds / 3 * 1.001)
    assert not budget.take(seconds / 3 * 1.001)


def test_no_more_than_the_bound_over_any_time():
    budget, rng = OffloadBudget(10, 60.0), np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1.0, 2000))
    taken = [now for now in times if budget.take(now)]
    for start in range(0, len(taken), 20):
        for end in range(start, len(taken), 20):
            assert end - start + 1 <= 10 + (taken[end] - taken[start]) * 10 / 60 + 1e-9
    assert len(taken) == pytest.approx(10 + times[-1] / 6, rel=0.05)


def test_a_long_silence_fills_the_bucket_and_no_more():
    budget = OffloadBudget(2, 1.0)
    assert [budget.take(now) for now in (0.0, 1e9, 1e9, 1e9)] == [True, True, True, False]


def test_token_that_is_given_back_can_be_taken_again():
    budget = OffloadBudget(1, 60.0)
    assert budget.take(0.0)
    budget.give_back()
    budget.give_back()
    assert [budget.take(0.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("text", ["60", "60/y", "-1/h", "1.5/h", "/h", "60/H", " 60/h", "0/h"])
def test_malformed_bound_is_refused(text):
    with pytest.raises(InputError):
        OffloadBudget.parse(text)
