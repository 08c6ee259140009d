import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.formats import DAY
from gatewise_sim.fleet.network.outages import Outage, Outages
from tests.support.refused import refused


def test_windows_that_touch_are_one():
    outages = Outages.parse("cloud:+10s-+20s, cloud:+20s-+30s,cloud:+15s-+17s")
    assert outages.down("cloud", 10.0) == 30.0
    assert outages.changes(60.0) == [10.0, 15.0, 17.0, 20.0, 30.0]
    assert outages
    assert not Outages.parse("")


def test_all_day_is_for_good():
    outages = Outages.parse("cloud:00:00-24:00")
    assert outages.down("cloud", 5.0) == math.inf
    both = Outages.parse("cloud:00:00-12:00,cloud:12:00-24:00")
    assert both.down("cloud", 1e7) == math.inf


def test_a_long_outage_has_an_end():
    outages = Outages.parse("cloud:+10s-+9day,cloud:+9day-+20day")
    assert outages.down("cloud", 20.0) == 20 * DAY
    assert outages.down("cloud", 20 * DAY) is None


def test_workers_that_are_down_add_up():
    outages = Outages.parse("workers:2:+10s-+30s,workers:1:+20s-+40s")
    assert [outages.workers_down(at) for at in (9.9, 10.0, 20.0, 29.9, 30.0, 40.0)] == [
        0, 2, 3, 3, 1, 0,
    ]  # fmt: skip
    assert outages.down("workers", 15.0) == 40.0


once = st.tuples(st.integers(0, 300_000), st.integers(1, 200_000)).map(
    lambda w: Outage("cloud", float(w[0]), float(w[0] + w[1]))
)
daily = (
    st.tuples(st.integers(0, 86_399), st.integers(0, 86_399))
    .filter(lambda w: w[0] != w[1])
    .map(lambda w: Outage("cloud", float(w[0]), float(w[1]), daily=True))
)


def is_down_simply(window: Outage, now: float) -> bool:
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
def test_down_is_what_the_windows_say(windows, moments, day_begins):
    # The day's windows are asked by the clock, the others by the run.
    outages = Outages(windows, day_begins=day_begins)
    for now in moments:

        def simply(at: float) -> bool:
            return any(is_down_simply(w, at + day_begins if w.daily else at) for w in windows)

        until = outages.down("cloud", now)
        assert (until is not None) == simply(now)
        if until is not None and until < math.inf:
            assert not simply(until)
            assert simply(until - 0.5)
            assert outages.down("cloud", (now + until) / 2) == until


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("noon", "write it as cloud:12:00-12:10"),
        ("moon:12:00-12:10", "cloud, link, broker, workers can be down"),
        ("cloud:12:00", "give both ends"),
        ("cloud:12:00-+30s", "give both ends"),
        ("cloud:25:00-26:00", "'25:00' is not a time of day"),
        ("cloud:12:61-13:00", "'12:61' is not a time of day"),
        ("link:+30-+35s", "'30' is not a span of time"),
        ("link:+35s-+30s", "its end must lie behind its begin"),
        ("link:12:00-12:00", "its end must lie behind its begin"),
        ("workers:12:00-12:10", "'00' is not a time of day"),
        ("workers:0:+1s-+2s", "say how many workers"),
        ("workers:+1s-+2s", "say how many workers"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text, complaint):
    refused(Outages.parse, text, says=complaint)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("cloud", 5.0, 4.0), "must lie behind"),
        (("workers", 4.0, 5.0, False, 0), "at least 1"),
        (("moon", 1.0, 2.0), "'moon': choose one of cloud"),
    ],
)
def test_an_outage_needs_sense(given, complaint):
    refused(Outage, *given, says=complaint)
