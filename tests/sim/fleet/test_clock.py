from gatewise_sim.fleet.clock import Clock


def test_an_event_in_the_past_happens_now_after_what_is_due():
    clock = Clock()
    done = []

    def late() -> None:
        clock.at(1.0, done.append, "late")

    clock.at(2.0, late)
    clock.at(2.0, done.append, "due")
    clock.run(until=2.5)
    assert done == ["due", "late"]
    assert clock.now == 2.5


def test_an_event_at_the_end_of_a_run_waits_for_the_next_one():
    clock = Clock()
    done = []
    clock.at(2.0, done.append, "x")
    clock.run(until=2.0)
    assert done == []
    clock.run()
    assert done == ["x"]
