import random
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_edge.link.breaker import Breaker, BreakerCounts
from gatewise_sim.fleet.lazy_breaker import LazyBreaker

steps = st.lists(
    st.tuples(st.sampled_from(["reply", "silence", "not made"]), st.floats(0.01, 5.0)), max_size=80
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_it_does_what_a_breaker_does(course):
    counts, lazy_counts = BreakerCounts(), BreakerCounts()
    draw, lazy_draw = random.Random(1).random, random.Random(1).random
    breaker, lazy = Breaker(draw=draw, counts=counts), LazyBreaker(lazy_draw, lazy_counts)
    now = 0.0
    for what, pause in course:
        now += pause
        admitted = breaker.admit(now, now + 0.5)
        assert lazy.admit(now, now + 0.5) == admitted
        if not admitted:
            continue
        for one in (breaker, lazy):
            if what == "not made":
                one.release(now)
            else:
                one.record(what == "reply", asked=now, now=now + 0.3)
    assert asdict(counts) == asdict(lazy_counts)


def test_it_makes_one_only_when_it_needs_to():
    lazy = LazyBreaker(random.random, BreakerCounts())
    lazy.record(True, asked=0.0, now=1.0)
    assert lazy._breaker is None
    lazy.record(False, asked=1.0, now=2.0)
    assert lazy._breaker is not None
