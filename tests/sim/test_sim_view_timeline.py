import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.view.timeline import ROUTES, TimeLine

times = st.floats(0, 1e6)
counts = st.integers(0, 10**6)


def totals(line: TimeLine) -> dict[str, float]:
    return {route: math.fsum(getattr(b, route) for b in line.bins) for route in ROUTES}


@settings(max_examples=50, deadline=None)
@given(
    st.one_of(st.floats(0, 1e5), st.just(math.inf), st.just(math.nan)),
    st.lists(st.tuples(times, times, counts, counts), max_size=40),
)
def test_no_answer_is_lost_and_memory_is_bounded(seconds, news):
    line = TimeLine(seconds, bins=20)
    for begin, end, edge, fallback in news:
        line.add(begin, end, {"edge": edge, "fallback": fallback}, 1.0, 2.0)
        assert len(line.bins) <= 20
        assert len(line.bins) * line.width >= end * (1 - 1e-9)
    found = totals(line)
    assert found["edge"] == pytest.approx(sum(n[2] for n in news), abs=1e-6)
    assert found["fallback"] == pytest.approx(sum(n[3] for n in news), abs=1e-6)
    assert found["cloud"] == found["error"] == 0


@pytest.mark.parametrize("seconds", [5e-324, 1e-9, 0.0, -1.0, 1e308])
@pytest.mark.parametrize("end", [0.0, 1.0, 1e308])
def test_lengths_that_make_no_sense_do_not_hang(seconds, end):
    line = TimeLine(seconds)
    line.add(0.0, end, {"edge": 1})
    assert totals(line)["edge"] == pytest.approx(1)


def test_a_run_longer_than_expected_makes_the_bins_wider():
    line = TimeLine(20.0, bins=10)
    for second in range(40):
        line.add(second, second + 1, {"cloud": 1})
    assert line.width == 4.0
    assert line.span == 40.0
    assert [b.cloud for b in line.bins] == pytest.approx([4.0] * 10)


def test_news_from_many_windows_may_come_in_any_order():
    line = TimeLine(100.0, bins=10)
    line.add(80.0, 85.0, {"edge": 5})
    line.add(85.0, 15.0, {"edge": 3})  # back in time: all is the end's
    assert [b.edge for b in line.bins] == [0, 3, 0, 0, 0, 0, 0, 0, 5]


def test_rates_of_a_bin_and_of_an_empty_one():
    line = TimeLine(10.0, bins=10)
    line.add(0, 1, {"edge": 6, "cloud": 1, "fallback": 2, "error": 1}, 5.0, 9.0)
    line.add(2, 3, {}, 7.0)
    full, none, quiet = line.bins
    assert (full.answered, full.sent_rate, full.fallback_rate) == (10, 0.3, 0.3)
    assert (none.sent_rate, none.fallback_rate, none.p50_ms) == (None, None, None)
    assert (quiet.p50_ms, quiet.p95_ms) == (7.0, None)
