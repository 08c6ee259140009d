import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.view.faults import Fault, Faults

EVENTS = st.tuples(
    st.sampled_from(["cloud", "link", "worker 1"]),
    st.booleans(),
    st.floats(0, 1e5),
    st.none() | st.floats(0, 1e5),
)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=200))
def test_whatever_is_told_there_are_few_and_each_ends_after_it_began(events):
    faults = Faults()
    for what, up, at, now in events:
        faults.tell(what, up, at, now)
    assert len(faults.spans) <= 64
    assert all(span.begin <= span.end for span in faults.spans)
    assert [s.begin for s in faults.spans] == sorted(s.begin for s in faults.spans)


def test_down_and_back_as_it_happens():
    faults = Faults()
    faults.tell("broker", False, 10.0, 10.0)
    assert faults.spans == (Fault("broker", 10.0),)
    assert faults.spans[0].when(500.0) == "on"
    faults.tell("broker", True, 12.0, 12.0)
    assert faults.spans == (Fault("broker", 10.0, 12.0),)
    assert [faults.spans[0].when(at) for at in (9.0, 10.0, 12.0)] == ["to come", "on", "over"]
    faults.tell("broker", False, 30.0, 30.0)
    assert len(faults.spans) == 2


def test_what_was_told_ahead_and_happens_is_one():
    faults = Faults()
    faults.tell("cloud", False, 30.0, None)
    faults.tell("cloud", True, 40.0, None)
    faults.tell("cloud", False, 30.2, 30.2)
    faults.tell("cloud", True, 40.4, 40.4)
    assert faults.spans == (Fault("cloud", 30.0, 40.4, planned=True),)


def test_others_are_not_mixed_up():
    faults = Faults()
    faults.tell("worker 1", False, 5.0, 5.0)
    faults.tell("worker 2", False, 5.0, 5.0)
    faults.tell("worker 1", True, 9.0, 9.0)
    faults.tell("link", True, 9.0, 9.0)  # was never down
    assert {(s.what, s.end) for s in faults.spans} == {("worker 1", 9.0), ("worker 2", math.inf)}


def test_a_new_leg_forgets_what_only_happened():
    faults = Faults()
    faults.tell("cloud", False, 30.0, None)
    faults.tell("worker 1", False, 5.0, 5.0)
    faults.again()
    assert [s.what for s in faults.spans] == ["cloud"]


def test_of_too_many_those_that_are_over_go_first():
    faults = Faults()
    for k in range(80):
        faults.tell("cloud", False, 100.0 * k, 100.0 * k)
        faults.tell("cloud", True, 100.0 * k + 10, 100.0 * k + 10)
    assert faults.spans[-1].begin == 7900.0
    ahead = Faults()
    for k in range(80):
        ahead.tell("cloud", False, 100.0 * k, None)
        ahead.tell("cloud", True, 100.0 * k + 10, None)
    assert ahead.spans[0].begin == 0.0
