from gatewise_sim.fleet.clock import Clock


def test_it_stops_before_until_and_goes_on():
    clock, seen = Clock(), []
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    clock.run(2.0)
    assert (seen, clock.now, clock.events) == ([1.0], 2.0, 1)
    clock.run()
    assert seen == [1.0, 2.0, 3.0]


def test_what_is_overdue_happens_at_once_and_time_never_goes_back():
    clock, seen = Clock(), []
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [5.0]
