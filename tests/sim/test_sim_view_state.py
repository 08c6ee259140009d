import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view.state import State

BEGAN = 1000.0


def running(seconds=100.0, total=1000) -> State:
    state = State()
    state.begin("ten devices", seconds, total, BEGAN)
    state.leg("system", "Gatewise", BEGAN)
    return state


def steady(state: State, wall: float, *, per_second=50, seconds=100.0, step=0.1) -> float:
    """Ten times real time, even answers: 70 % edge, 20 % cloud, 10 % fallback."""
    clock = BEGAN
    for k in range(1, round(wall / step) + 1):
        clock, n = BEGAN + k * step, int(per_second * k * step)
        state.update(
            Snapshot(
                at=10 * k * step,
                answered=n,
                edge=int(0.7 * n),
                cloud=int(0.2 * n),
                fallback=n - int(0.7 * n) - int(0.2 * n),
                right=int(0.9 * n),
                p50_ms=10.0,
                p95_ms=20.0,
                done=10 * k * step / seconds,
            ),
            clock,
        )
    return clock


def test_before_anything_is_told():
    picture = State().picture(5.0)
    assert (picture.phase, picture.elapsed, picture.left, picture.rate) == (
        "waiting",
        0,
        None,
        None,
    )
    assert picture.bins == ()


def test_shares_rates_and_time_left_of_an_even_run():
    state = running()
    clock = steady(state, 4.0)
    picture = state.picture(clock)
    assert picture.now.answered == 200
    assert picture.shares == {"edge": 0.7, "cloud": 0.2, "fallback": 0.1, "error": 0.0}
    assert picture.offload_rate == pytest.approx(0.3)
    assert picture.accuracy == pytest.approx(0.9)
    assert picture.rate == pytest.approx(50, rel=0.02)
    assert picture.speed == pytest.approx(10, rel=0.02)
    assert picture.left == pytest.approx(6.0, rel=0.02)
    assert picture.elapsed == pytest.approx(4.0)
    assert sum(b.answered for b in picture.bins) == pytest.approx(200)
    assert len(picture.bins) == 48  # 40 of 100 s, in 120 bins


def test_a_run_that_stands_still_takes_ever_longer():
    state = running()
    clock = steady(state, 4.0)
    lefts = [state.picture(clock + pause).left for pause in (0, 5, 20, 80)]
    assert lefts == sorted(lefts)
    assert lefts[-1] > 4 * lefts[0]
    assert state.picture(clock + 80).quiet == pytest.approx(80)


def test_rates_follow_a_change_within_the_recent_time():
    state = running(seconds=1e4)
    for k in range(1, 601):  # 10 answers a second for half a minute, then 100
        n = k if k <= 300 else 300 + 10 * (k - 300)
        state.update(Snapshot(at=k * 0.1, answered=n, edge=n, done=k / 1e5), BEGAN + k * 0.1)
        if k == 300:
            assert state.picture(BEGAN + 30).rate == pytest.approx(10, rel=0.02)
    assert state.picture(BEGAN + 60).rate == pytest.approx(100, rel=0.02)


def test_counts_that_begin_anew_are_not_counted_negative():
    state = running()
    state.update(Snapshot(at=1, answered=50, edge=50), BEGAN + 1)
    state.update(Snapshot(at=1, answered=10, edge=10), BEGAN + 2)
    picture = state.picture(BEGAN + 2)
    assert sum(b.edge for b in picture.bins) == pytest.approx(60)
    assert picture.rate is None or picture.rate >= 0


def test_parts_that_are_done_in_any_order_lie_where_they_belong():
    state = running(seconds=120.0)
    state.update(Snapshot(at=10, answered=10, edge=10, piece=(90, 100)), BEGAN + 1)
    state.update(Snapshot(at=20, answered=30, edge=10, fallback=20, piece=(30, 40)), BEGAN + 2)
    state.fault("cloud", False, 15.0)
    assert state.picture(BEGAN + 2).fault_time is None
    bins = state.picture(BEGAN + 2).bins
    assert [i for i, b in enumerate(bins) if b.fallback] == list(range(30, 40))
    assert [i for i, b in enumerate(bins) if b.edge] == list(range(90, 100))
    state.end("", BEGAN + 3)
    assert state.picture(BEGAN + 3).fault_time == 20


def test_a_leg_that_was_over_at_once_has_no_time_line():
    state = running()
    state.update(Snapshot(at=100, answered=10, edge=5, fallback=5, done=1.0), BEGAN + 1)
    assert state.picture(BEGAN + 1).bins == ()


def test_accuracy_is_of_those_whose_truth_is_known():
    state = running()
    state.update(Snapshot(at=1, answered=50, edge=50, right=9, judged=10), BEGAN + 1)
    assert state.picture(BEGAN + 1).accuracy == 0.9
    state.update(Snapshot(at=2, answered=60, edge=60), BEGAN + 2)
    assert state.picture(BEGAN + 2).accuracy is None
    state.update(Snapshot(at=3, answered=70, edge=70, right=0, judged=0), BEGAN + 3)
    assert state.picture(BEGAN + 3).accuracy is None


def test_legs_are_kept_and_the_system_is_what_stays():
    state = running()
    clock = steady(state, 2.0)
    state.leg("edge_only", "All edge", clock)
    assert state.picture(clock).now.answered == 0
    state.update(Snapshot(at=50, answered=500, edge=500, right=400, done=1.0), clock + 1)
    state.end("nothing lost", clock + 1)
    picture = state.picture(clock + 500)
    assert [(leg.key, leg.answered, leg.took) for leg in picture.legs] == [
        ("system", 100, pytest.approx(2.0)),
        ("edge_only", 500, pytest.approx(1.0)),
    ]
    assert (picture.phase, picture.text) == ("ended", "nothing lost")
    assert (picture.leg_key, picture.now.answered) == ("system", 100)
    assert picture.elapsed == pytest.approx(3.0)
    assert picture.left is None


def test_the_end_may_be_told_twice_and_a_run_may_begin_again():
    state = running()
    steady(state, 1.0)
    state.end("one", BEGAN + 1)
    state.end("two", BEGAN + 2)
    assert len(state.picture(BEGAN + 2).legs) == 1
    state.begin("another", 10.0, None, BEGAN + 3)
    picture = state.picture(BEGAN + 3)
    assert (picture.phase, picture.title, picture.now.answered) == ("running", "another", 0)
    assert len(picture.legs) == 1


def test_names_cannot_steer_a_terminal():
    state = State()
    state.begin("a\x1b[2Jb\x07\nc" + "x" * 1000, 1.0, None, 0.0)
    title = state.picture(0.0).title
    assert title.isprintable()
    assert title.startswith("a[2Jb c")
    assert len(title) <= 160


ODD = st.floats(allow_nan=True, allow_infinity=True)
COUNT = st.integers(0, 10**12)
SNAPSHOTS = st.builds(
    Snapshot,
    at=ODD,
    answered=COUNT,
    edge=COUNT,
    cloud=COUNT,
    fallback=COUNT,
    error=COUNT,
    right=st.none() | COUNT,
    judged=st.none() | COUNT,
    p50_ms=st.none() | ODD,
    p95_ms=st.none() | ODD,
    in_flight=COUNT,
    workers_up=st.none() | COUNT,
    devices_up=st.none() | COUNT,
    done=ODD,
    piece=st.none() | st.tuples(ODD, ODD),
)
CALLS = st.one_of(
    SNAPSHOTS.map(lambda s: ("update", s)),
    st.tuples(st.just("fault"), st.sampled_from("ab"), st.booleans(), ODD),
    st.tuples(st.just("leg"), st.text(max_size=5)),
    st.tuples(st.just("begin"), ODD, st.none() | COUNT),
    st.tuples(st.just("end"), st.text(max_size=5)),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), CALLS), max_size=60))
def test_nothing_that_an_engine_says_breaks_it(calls):
    state, clock = State(), 0.0
    for pause, call in calls:
        clock += pause
        match call:
            case "update", snapshot:
                state.update(snapshot, clock)
            case "fault", what, up, at:
                state.fault(what, up, at)
            case "leg", name:
                state.leg(name, name, clock)
            case "begin", seconds, total:
                state.begin("t", seconds, total, clock)
            case "end", text:
                state.end(text, clock)
        picture = state.picture(clock)
        assert 0 <= picture.now.done <= 1
        assert len(picture.bins) <= 120
        assert len(picture.legs) <= 24
        assert len(picture.faults) <= 64
        numbers = [v for v in asdict(picture).values() if isinstance(v, float)]
        assert all(map(math.isfinite, numbers))


def test_memory_is_bounded_in_a_run_that_tells_for_days():
    state = running(seconds=3 * 86_400.0)
    for k in range(10_000):
        state.update(Snapshot(at=26.0 * k, answered=k, edge=k), BEGAN + 0.1 * k)
        state.fault("cloud", k % 2 == 1, 13.0 * k)
    assert len(state._recent) <= 100
    assert len(state.picture(BEGAN + 1000).bins) <= 120
    assert len(state.picture(BEGAN + 1000).faults) <= 64
    assert state.picture(BEGAN + 999.9).rate == pytest.approx(10, rel=0.02)
