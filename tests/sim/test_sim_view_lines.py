from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view.lines import Lines
from gatewise_sim.view.state import State


def told(state: State, lines: Lines, clock: float) -> list[str]:
    return lines.tell(state.picture(clock), clock)


def test_a_run_in_plain_lines():
    state, lines = State(), Lines()
    state.begin("ten devices", 100.0, 1000, 0.0)
    assert told(state, lines, 0.0) == ["ten devices"]
    state.leg("system", "Gatewise", 0.0)
    state.fault("cloud", False, 40.0)
    state.fault("cloud", True, 60.0)
    assert told(state, lines, 0.0) == ["  Gatewise"]
    said = []
    for k in range(1, 101):
        snapshot = Snapshot(
            at=k,
            answered=10 * k,
            edge=9 * k,
            cloud=k,
            right=9 * k,
            p50_ms=5,
            p95_ms=9,
            done=k / 100,
        )
        state.update(snapshot, 0.1 * k)
        said += told(state, lines, 0.1 * k)
    assert said == [
        "  20 %, 200 answered, 10.0 % offloaded, 90.0 % right, p50 5 ms, p95 9 ms, 8 s left",
        "  cloud down at 40.0 s",
        "  40 %, 400 answered, 10.0 % offloaded, 90.0 % right, p50 5 ms, p95 9 ms, 6 s left",
        "  cloud back at 60.0 s",
        "  60 %, 600 answered, 10.0 % offloaded, 90.0 % right, p50 5 ms, p95 9 ms, 4 s left",
        "  80 %, 800 answered, 10.0 % offloaded, 90.0 % right, p50 5 ms, p95 9 ms, 2 s left",
        "  100 %, 1,000 answered, 10.0 % offloaded, 90.0 % right, p50 5 ms, p95 9 ms",
    ]
    state.end("nothing lost", 10.5)
    assert told(state, lines, 10.5) == [
        "  done: Gatewise, 1,000 answered, 90.00 % right, 10.0 % offloaded",
        "  ended after 10 s: nothing lost",
    ]


def test_a_leg_that_hardly_moves_still_says_so():
    state, lines = State(), Lines()
    state.begin("slow", 1000.0, None, 0.0)
    told(state, lines, 0.0)
    said = []
    for k in range(1, 701):
        state.update(Snapshot(at=0.1 * k, answered=k, edge=k, done=k / 10_000), 0.1 * k)
        said += told(state, lines, 0.1 * k)
    assert len(said) == 2


def test_short_legs_say_only_what_came_out():
    state, lines = State(), Lines()
    state.begin("fast", 60.0, 10, 0.0)
    told(state, lines, 0.0)
    for name in "abc":
        state.leg(name, name, 0.0)
        state.update(Snapshot(at=60.0, answered=10, edge=10, done=1.0), 0.1)
        assert told(state, lines, 0.1)[-1] == f"  {name}"
    state.end("", 0.3)
    assert told(state, lines, 0.3)[-1] == "  ended after 1 s"
