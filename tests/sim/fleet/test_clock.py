import pytest

from gatewise_sim.fleet.clock import Clock


def test_what_happens_may_enter_more():
    clock, seen = Clock(), []

    def again(n: int) -> None:
        seen.append((clock(), n))
        if n:
            clock.at(clock.now + 1.0, again, n - 1)

    clock.at(0.5, again, 2)
    clock.run()
    assert seen == [(0.5, 2), (1.5, 1), (2.5, 0)]


def test_it_stops_before_until_and_goes_on():
    clock, seen = Clock(), []
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    clock.run(2.0)
    assert (seen, clock.now, len(clock)) == ([1.0], 2.0, 2)
    clock.run()
    assert seen == [1.0, 2.0, 3.0]


def test_what_is_overdue_happens_at_once_and_time_never_goes_back():
    clock, seen = Clock(), []
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [5.0]


@pytest.mark.parametrize("n", [2, 50])
def test_ties_happen_in_the_order_entered(n):
    clock, seen = Clock(), []
    for i in range(n):
        clock.at(1.0, seen.append, i)
    clock.run()
    assert seen == list(range(n))
