"""Tests of the schedule of outages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.formats import DAY
from gatewise_sim.fleet.outages import Outages, OutageWindow
from tests.support.refused import refused


def parse(text: str, seconds: float = DAY) -> Outages:
    return Outages.parse([part for part in text.split(",") if part], seconds=seconds)


def test_adjacent_windows_are_merged():
    outages = parse("cloud:+10s-+20s, cloud:+20s-+30s,cloud:+15s-+17s", 60.0)
    assert outages.down("cloud", 10.0) == 30.0
    assert outages.changes() == [10.0, 15.0, 17.0, 20.0, 30.0]
    assert outages
    assert not parse("")


def test_outage_all_day_never_ends():
    assert parse("cloud:00:00-24:00").down("cloud", 5.0) == math.inf
    assert parse("cloud:00:00-12:00,cloud:12:00-24:00").down("cloud", 7e4) == math.inf


def test_a_long_outage_has_an_end():
    outages = parse("cloud:+10s-+9day,cloud:+9day-+20day", 21 * DAY)
    assert outages.down("cloud", 20.0) == 20 * DAY
    assert outages.down("cloud", 20 * DAY) is None


def test_numbers_of_workers_down_are_summed():
    outages = parse("workers:2:+10s-+30s,workers:1:+20s-+40s")
    down = [outages.workers_down(now) for now in (9.9, 10.0, 20.0, 29.9, 30.0, 40.0)]
    assert down == [0, 2, 3, 3, 1, 0]
    assert outages.down("workers", 15.0) == 40.0


def test_faults_lie_within_the_run_and_other_windows_are_listed():
    outages = parse("link:+50s-+70s,cloud:12:00-12:10,workers:2:+1s-+2s", 60.0)
    assert outages.faults() == [("link", 50.0, 60.0, 1), ("workers", 1.0, 2.0, 2)]
    assert outages.unreached() == ["cloud"]


once = st.tuples(st.integers(0, 300_000), st.integers(1, 200_000)).map(
    lambda window: OutageWindow("cloud", float(window[0]), float(window[0] + window[1]))
)
daily = (
    st.tuples(st.integers(0, 86_399), st.integers(0, 86_399))
    .filter(lambda window: window[0] != window[1])
    .map(lambda window: OutageWindow("cloud", float(window[0]), float(window[1]), daily=True))
)


def is_down_simply(window: OutageWindow, now: float) -> bool:
    if not window.daily:
        return window.begin <= now < window.end
    clock = now % DAY
    if window.begin < window.end:
        return window.begin <= clock < window.end
    return clock >= window.begin or clock < window.end


@given(
    st.lists(st.one_of(once, daily), max_size=4),
    st.lists(st.integers(0, 400_000), min_size=1, max_size=20),
    st.integers(0, 86_399),
)
def test_down_matches_a_direct_check_of_the_windows(windows, moments, day_begins):
    outages = Outages(windows, seconds=400_000.0, day_begins=day_begins)

    def down_simply(now: float) -> bool:
        # The day's windows go by the clock, the others by the run.
        return any(is_down_simply(w, now + day_begins if w.daily else now) for w in windows)

    for now in moments:
        until = outages.down("cloud", now)
        assert (until is not None) == down_simply(now)
        if until is not None and until < math.inf:
            assert not down_simply(until)
            assert down_simply(until - 0.5)
            assert outages.down("cloud", (now + until) / 2) == until


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("noon", "write it as cloud:12:00-12:10"),
        ("moon:12:00-12:10", "the parts are cloud, link, broker, workers"),
        ("cloud:12:00", "give two times"),
        ("cloud:12:00-+30s", "give two times"),
        ("cloud:25:00-26:00", "'25:00' is not a time of day"),
        ("link:+30-+35s", "'30' is not a span of time"),
        ("link:+35s-+30s", "its end must be after its beginning"),
        ("link:12:00-12:00", "its end must be after its beginning"),
        ("workers:0:+1s-+2s", "give the number of workers"),
        ("workers:+1s-+2s", "give the number of workers"),
    ],
)
def test_invalid_outage_is_refused_in_one_line(text, complaint):
    refused(OutageWindow.parse, text, says=complaint)
