"""A row's way through a device, counted by the benchmark of the journeys."""

from __future__ import annotations

import pytest

from benchmarks.bench_journeys import count_journey
from benchmarks.harness import call_in_process


@pytest.mark.slow
def test_a_local_answer_of_four_stages_moves_30_times_between_6_files_at_most():
    counts = call_in_process(count_journey, "answer")
    assert 0 < counts["files"] <= 6, counts
    assert 0 < counts["moves"] <= 30, counts
