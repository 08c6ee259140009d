from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.fleet.estimate.plan import SamplingPlan, Window, cut_window
from gatewise_sim.fleet.network.outages import Outage, Outages

outages = st.lists(
    st.builds(
        lambda begin, length: Outage("cloud", begin, begin + length),
        st.integers(0, 5000),
        st.integers(1, 1000),
    ),
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(outages, st.integers(10, 4000))
def test_bins_follow_each_other_and_change_with_what_is_up(windows, seconds):
    plan, down = SamplingPlan.everything(1, 1, seconds), Outages(windows)
    bins = cut_window(plan, plan.windows[0], down)
    assert bins[0].begin == 0.0
    assert bins[-1].end == pytest.approx(seconds)
    assert all(a.end == b.begin for a, b in pairwise(bins))
    assert all((b.first, b.last) == (b.begin, b.end) and b.end > b.begin for b in bins)
    edges = {b.begin for b in bins}
    for _, begin, end, _ in down.faults(seconds):
        assert {t for t in (begin, end) if 0 < t < seconds} <= edges
    for b in bins:
        states = {
            tuple(x.begin <= t < x.end for x in windows)
            for t in (b.begin + 1e-9 * seconds, (b.begin + b.end) / 2)
        }
        assert len(states) == 1
    same = {b.segment for b in bins}
    assert len(same) <= 1 + 2 * len(windows)


def test_around_an_outage_they_are_finer():
    plan = SamplingPlan.everything(1, 1, 86_400.0)
    bins = cut_window(plan, plan.windows[0], Outages.parse("cloud:12:00-12:10"))
    assert 60 <= len(bins) <= 100
    noon = 43_200.0
    inside = [b for b in bins if noon <= b.begin < noon + 600]
    after = [b for b in bins if noon + 600 <= b.begin < noon + 660]
    assert (len(inside), len(after)) == (8, 6)
    assert max(b.end - b.begin for b in after) < 11


def test_a_window_that_stands_for_more_is_one_bin():
    window = Window(100.0, 105.0, 5.0, 0.0, 3600.0, (4, 0))
    plan = SamplingPlan(1, 1, 1, 1, (window, window), 7200.0)
    assert cut_window(plan, window, Outages()) == [window]


def test_faults_are_listed_day_by_day():
    found = Outages.parse("workers:2:12:00-13:00,link:+5s-+9s").faults(2 * 86_400.0)
    assert found == [
        ("link", 5.0, 9.0, 1),
        ("workers", 43_200.0, 46_800.0, 2),
        ("workers", 129_600.0, 133_200.0, 2),
    ]
    assert Outages.parse("cloud:+5s-+99s").faults(50.0) == [("cloud", 5.0, 50.0, 1)]
