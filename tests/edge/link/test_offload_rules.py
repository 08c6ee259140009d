"""The token bucket bounds offloads at once and over time."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.link.offload_rules import OffloadBudget


@pytest.mark.parametrize(
    ("text", "seconds"), [("3/s", 1), ("3/min", 60), ("3/h", 3600), ("3/d", 86400)]
)
def test_bucket_gets_each_token_back_after_its_part_of_the_time(text, seconds):
    budget = OffloadBudget.parse(text)
    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.take(seconds / 3 * 0.999)
    assert budget.take(seconds / 3 * 1.001)
    assert not budget.take(seconds / 3 * 1.001)


def test_offloads_stay_within_the_bound_over_every_period():
    budget = OffloadBudget(10, 60.0)
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1.0, 2000))
    offloads = [now for now in times if budget.take(now)]
    for start in range(0, len(offloads), 20):
        for end in range(start, len(offloads), 20):
            seconds = offloads[end] - offloads[start]
            assert end - start + 1 <= 10 + seconds * 10 / 60 + 1e-9
    assert len(offloads) == pytest.approx(10 + times[-1] / 6, rel=0.05)


def test_long_pause_fills_the_bucket_up_to_its_capacity():
    budget = OffloadBudget(2, 1.0)
    assert [budget.take(now) for now in (0.0, 1e9, 1e9, 1e9)] == [True, True, True, False]


def test_returned_token_can_be_taken_again():
    budget = OffloadBudget(1, 60.0)
    assert budget.take(0.0)
    budget.give_back()
    budget.give_back()
    assert [budget.take(0.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("text", ["60", "60/y", "-1/h", "1.5/h", "/h", "60/H", " 60/h", "0/h"])
def test_malformed_bound_is_refused(text):
    with pytest.raises(InputError):
        OffloadBudget.parse(text)
