"""Smoothed labels and figures of events, against what their definitions count one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_signals import MajorityFilter, TwoStateFilter, event_figures
from gatewise_signals.filters import parse_filter

LABELS = st.lists(st.sampled_from("abc"), max_size=40)
CHANCES = st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.8, 1.0]), max_size=40)
BITS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30)


@given(LABELS, st.integers(1, 7))
def test_majority_is_the_most_frequent_of_the_last(labels, k):
    majority, before = MajorityFilter(k), None
    for i, label in enumerate(labels):
        last = labels[max(0, i - k + 1) : i + 1]
        most = max(map(last.count, last))
        tied = [c for c in last if last.count(c) == most]
        before = before if before in tied else tied[-1]
        assert majority.push(label) == before


@given(st.integers(1, 9), st.integers(0, 12))
def test_delay_is_what_a_change_that_lasts_takes(k, lead):
    majority = MajorityFilter(k)
    smoothed = [majority.push(c) for c in "a" * (k + lead) + "b" * (k + 1)]
    assert smoothed.index("b") - (k + lead) == majority.delay
    two = TwoStateFilter("b", enter=0.7, leave=0.3, windows=k)
    smoothed = [two.push("", {"a": 1 - p, "b": p}) for p in [0.1] * lead + [0.9] * k]
    assert smoothed.index("b") - lead == two.delay


@given(CHANCES, st.integers(1, 4))
def test_two_states_enter_after_some_windows_and_leave_below(chances, m):
    state = TwoStateFilter("x", enter=0.8, leave=0.4, windows=m)
    found = [state.push("", {"x": p, "y": 0.1, "z": 0.2}) == "x" for p in chances]
    for i, on in enumerate(found):
        # on: some m in a row reached 0.8 up to here, and none since was below 0.4
        runs = [j for j in range(m, i + 2) if all(p >= 0.8 for p in chances[j - m : j])]
        assert on == any(all(p >= 0.4 for p in chances[j : i + 1]) for j in runs)
    assert state.push("", {"x": 0.0, "y": 0.1, "z": 0.2}) == "z"


def test_a_reset_forgets():
    majority, two = MajorityFilter(3), TwoStateFilter(1, enter=0.5, leave=0.1)
    for label in (0, 0, 0):
        majority.push(label)
        two.push(label, {0: 0.4, 1: 0.6})
    majority.reset()
    two.reset()
    assert (majority.push(1), two.push(1, {0: 0.8, 1: 0.2})) == (1, 0)


@given(BITS)
def test_event_figures_count_what_the_definitions_say(rows):
    """Each window by its own: same run as the one before, if no gap and both are marked."""
    times, now = [], 0.0
    for _, _, gap in rows:
        now += 5.0 if gap else 0.5
        times.append(now)
    figures = event_figures(
        [a for a, _, _ in rows],
        [e for _, e, _ in rows],
        positive=True,
        hop_seconds=0.5,
        times=times,
    )

    def runs(column):
        found = []
        for i, row in enumerate(rows):
            if row[column]:
                joined = i and rows[i - 1][column] and not row[2]
                found[-1].append(i) if joined else found.append([i])
        return found

    seen = [[i for i in run if rows[i][0]] for run in runs(1)]
    assert figures.events == len(seen)
    assert figures.missed == sum(not run for run in seen)
    assert figures.false_alarms == sum(not any(rows[i][1] for i in run) for run in runs(0))
    assert figures.hours == pytest.approx(len(rows) / 7200)
    delays = [times[s[0]] - times[run[0]] for s, run in zip(seen, runs(1), strict=True) if s]
    if delays:
        assert figures.mean_delay_seconds == pytest.approx(sum(delays) / len(delays))
    else:
        assert figures.mean_delay_seconds is None
    assert figures.false_alarms_per_hour == figures.false_alarms / figures.hours


@pytest.mark.parametrize(
    "text",
    ["", "median:3", "majority:", "majority:0", "majority:2.5", "two-state:b,0.5,0.8,1",
     "two-state:c,0.8,0.5,1", "two-state:b,nan,0.5,1", "two-state:b,0.8,0.5"],
)  # fmt: skip
def test_no_filter(text):
    with pytest.raises(InputError):
        parse_filter(text, ("a", "b"))


def test_filters_are_parsed():
    assert parse_filter("majority:5", ()).delay == 2
    found = parse_filter("two-state:a,b,0.8,0.5,3", ("a,b", 1))
    assert (found.positive, found.enter, found.leave, found.delay) == ("a,b", 0.8, 0.5, 2)
    with pytest.raises(InputError, match="shapes"):
        event_figures([1], [1, 0], positive=1, hop_seconds=1)
    with pytest.raises(InputError, match="seconds above 0"):
        event_figures([1], [1], positive=1, hop_seconds=math.nan)
