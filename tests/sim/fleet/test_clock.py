"""Tests of the clock of virtual time."""

from gatewise_sim.fleet.clock import Clock


def test_event_in_the_past_happens_now_after_the_due_events():
    clock = Clock()
    event_names = []

    def schedule_in_the_past() -> None:
        clock.call_at(1.0, event_names.append, "late")

    clock.call_at(2.0, schedule_in_the_past)
    clock.call_at(2.0, event_names.append, "due")
    clock.run(until=2.5)
    assert event_names == ["due", "late"]
    assert clock.now == 2.5


def test_event_at_the_end_of_a_run_happens_in_the_next_run():
    clock = Clock()
    event_names = []
    clock.call_at(2.0, event_names.append, "x")
    clock.run(until=2.0)
    assert event_names == []
    clock.run()
    assert event_names == ["x"]
