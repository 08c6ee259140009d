"""A row's way through a device, counted by the benchmark of the journeys."""

from __future__ import annotations

import pytest

from benchmarks import bench_journeys
from benchmarks.harness import call_in_process


def count_answer_after_a_small_fit() -> dict[str, int]:
    """Count the journey of an answer of a cascade that is fitted to a third of the usual rows."""
    bench_journeys.N_TRAINING_ROWS = 400
    return bench_journeys.count_journey("answer")


@pytest.mark.slow
def test_a_local_answer_of_four_stages_moves_30_times_between_6_files_at_most():
    counts = call_in_process(count_answer_after_a_small_fit)
    assert 0 < counts["files"] <= 6, counts
    assert 0 < counts["moves"] <= 30, counts
