"""Tests of the schedule of outages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from gatewise.formats import DAY
from gatewise_sim.fleet.outages import Outages, OutageWindow
from tests.support.refused import assert_refused


def parse_outages(text: str, run_seconds: float = DAY) -> Outages:
    """Parse windows that commas separate."""
    window_texts = [window_text for window_text in text.split(",") if window_text]
    return Outages.parse(window_texts, run_seconds=run_seconds)


def test_adjacent_windows_are_merged():
    outages = parse_outages("cloud:+10s-+20s, cloud:+20s-+30s,cloud:+15s-+17s", 60.0)
    assert outages.recovery_time("cloud", 10.0) == 30.0
    assert outages.change_times() == [10.0, 15.0, 17.0, 20.0, 30.0]
    assert outages
    assert not parse_outages("")


def test_daily_outage_of_24_hours_never_ends():
    assert parse_outages("cloud:00:00-24:00").recovery_time("cloud", 5.0) == math.inf
    assert (
        parse_outages("cloud:00:00-12:00,cloud:12:00-24:00").recovery_time("cloud", 7e4) == math.inf
    )


def test_outage_of_many_days_ends():
    outages = parse_outages("cloud:+10s-+9day,cloud:+9day-+20day", 21 * DAY)
    assert outages.recovery_time("cloud", 20.0) == 20 * DAY
    assert outages.recovery_time("cloud", 20 * DAY) is None


def test_numbers_of_workers_down_are_summed():
    outages = parse_outages("workers:2:+10s-+30s,workers:1:+20s-+40s")
    n_down = [outages.n_workers_down(now) for now in (9.9, 10.0, 20.0, 29.9, 30.0, 40.0)]
    assert n_down == [0, 2, 3, 3, 1, 0]
    assert outages.recovery_time("workers", 15.0) == 40.0


def test_faults_lie_within_the_run_and_other_windows_are_listed():
    outages = parse_outages("link:+50s-+70s,cloud:12:00-12:10,workers:2:+1s-+2s", 60.0)
    assert [*map(astuple, outages.spans_within_run())] == [
        ("link", 50.0, 60.0, 1),
        ("workers", 1.0, 2.0, 2),
    ]
    assert outages.components_outside_run() == ["cloud"]


# Whole seconds, so that half a second before an end is inside; windows last up to a few days.
single_windows = st.tuples(st.integers(0, 300_000), st.integers(1, 200_000)).map(
    lambda window: OutageWindow("cloud", float(window[0]), float(window[0] + window[1]))
)
daily_windows = (
    st.tuples(st.integers(0, 86_399), st.integers(0, 86_399))
    .filter(lambda window: window[0] != window[1])
    .map(lambda window: OutageWindow("cloud", float(window[0]), float(window[1]), is_daily=True))
)


def is_inside_window(window: OutageWindow, now: float) -> bool:
    """Tell whether a time is in a window."""
    if not window.is_daily:
        return window.begin_s <= now < window.end_s
    time_of_day = now % DAY
    if window.begin_s < window.end_s:
        return window.begin_s <= time_of_day < window.end_s
    return time_of_day >= window.begin_s or time_of_day < window.end_s


@given(
    st.lists(st.one_of(single_windows, daily_windows), max_size=4),
    st.lists(st.integers(0, 400_000), min_size=1, max_size=20),
    st.integers(0, 86_399),
)
def test_recovery_time_matches_a_direct_check_of_the_windows(windows, times, start_time_of_day):
    outages = Outages(windows, run_seconds=400_000.0, start_time_of_day=start_time_of_day)

    def is_down(now: float) -> bool:
        # daily windows follow the time of day, the others the time since the start
        return any(
            is_inside_window(window, now + start_time_of_day if window.is_daily else now)
            for window in windows
        )

    for now in times:
        recovery_time = outages.recovery_time("cloud", now)
        assert (recovery_time is not None) == is_down(now)
        if recovery_time is not None and recovery_time < math.inf:
            assert not is_down(recovery_time)
            assert is_down(recovery_time - 0.5)
            # a later time in the same outage has the same end
            assert outages.recovery_time("cloud", (now + recovery_time) / 2) == recovery_time


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noon", "write it as cloud:12:00-12:10"),
        ("moon:12:00-12:10", "the components are cloud, link, broker, workers"),
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
def test_invalid_outage_is_refused_in_one_line(text, message):
    assert_refused(OutageWindow.parse, text, message=message)
