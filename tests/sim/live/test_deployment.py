"""Tests of outages of real processes, and of processes that end by themselves."""

import os
import signal

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.results import CLOUD, FALLBACK, REASON
from gatewise_sim.live.run import LiveRun
from tests.sim.live.runs import run, scenario
from tests.support.processes import below, command_line, named

pytestmark = pytest.mark.slow


def outage(small, table, *texts: str, **changes) -> tuple[LiveRun, list]:
    chosen = scenario(
        **{
            "time": "12s",
            "workload": "periodic:100ms",
            "devices": 4,
            "deadline_ms": 600.0,
            "outage": texts,
            **changes,
        }
    )
    live = run(small, table, chosen)
    assert (live.fleet.lost, live.troubles) == (0, [])
    return live, [tuple(fault.values()) for fault in live.faults]


def late(live: LiveRun) -> float:
    """Seconds by which an instance began behind its time, at most: this machine may be busy."""
    return live.behind_ms["max"] / 1000.0


def fallbacks(live: LiveRun, begin: float, end: float) -> tuple[int, int]:
    """Answers by the cloud and fallbacks among the instances that came then."""
    answers = live.fleet.answers
    routes = answers.route[(answers.time >= begin) & (answers.time < end)]
    return int((routes == CLOUD).sum()), int((routes == FALLBACK).sum())


def test_killed_workers_come_back(small, table):
    """One of two first, later both."""
    texts = ("workers:1:+1s-+2500ms", "cloud:+13s-+15s")
    live, faults = outage(small, table, *texts, time="26s", workers=2)
    first, later = faults[:2], faults[2:]
    assert [(name, up) for name, up, _ in first] == [("worker 1", False), ("worker 1", True)]
    assert fallbacks(live, first[0][2] + 0.5, first[1][2])[0] > 0  # the other one's answers
    assert [(name, up) for name, up, _ in later] == [("cloud", False), ("cloud", True)]
    down, back = (at for _, _, at in later)
    assert down >= 13.0
    assert back >= 15.0
    # What was on its way to a device in the last moment still comes there.
    assert fallbacks(live, down + 0.3, back - 1.2 - late(live))[0] == 0
    assert fallbacks(live, down, back)[1] > 0
    reasons = live.fleet.answers.reason[live.fleet.answers.route == FALLBACK]
    assert set(reasons.tolist()) <= {REASON[r] for r in ("timeout", "breaker-open", "full")}


def test_a_killed_broker_comes_back_on_its_port(small, table):
    live, faults = outage(small, table, "broker:+2s-+3s", time="13s")
    assert [(part, up) for part, up, _ in faults] == [("broker", False), ("broker", True)]
    down, up = (at for _, _, at in faults)
    assert fallbacks(live, 0, down - 1.0)[0] > 0
    assert fallbacks(live, down + 0.3, up - late(live))[0] == 0
    answers = live.fleet.answers
    assert REASON["link-down"] in answers.reason[answers.route == FALLBACK]
    # Each device waits before it connects again, at first about a second, twice as long each time.
    assert fallbacks(live, up + 6.0, 13.0)[0] > 0


def test_a_link_falls_silent(small, table):
    live, faults = outage(small, table, "link:+4s-+6500ms", time="11s", link="wifi")
    assert [(part, up) for part, up, _ in faults] == [("link", False), ("link", True)]
    assert fallbacks(live, 3.0, 4.0)[0] > 0
    # What was on its way in the last moment may have come through.
    assert fallbacks(live, 4.1, 5.8 - late(live))[0] == 0
    assert fallbacks(live, 4.1, 6.5)[1] > 0
    assert fallbacks(live, 9.7, 11.0)[0] > 0
    assert live.fleet.counts["late"] > 0


def test_a_worker_and_a_broker_that_die_unasked_are_named(small, table):
    done: list[str] = []
    others = below()  # a broker that tests share must live

    def kill(now: float, n_answers: int) -> None:
        if now > 1.0 and not done:
            done.append("x")
            os.kill(named("gatewise cloud")[0], signal.SIGKILL)
            program = f"{find_mosquitto()} "
            (broker,) = (p for p in below(aside=others) if command_line(p).startswith(program))
            os.kill(broker, signal.SIGKILL)

    chosen = scenario(time="4s", devices=2, deadline_ms=300.0)
    live = run(small, table, chosen, watch=kill)
    assert live.fleet.lost == 0
    assert any("the mosquitto broker ended" in trouble for trouble in live.troubles)
    assert any("worker 1: ended with status -9" in trouble for trouble in live.troubles)
    assert live.faults == []


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_does_not_start_leaves_nothing(small, table):
    with pytest.raises(RunError, match=r"worker 1: .*no_such_module"):
        run(small, table, scenario(devices=2, backend="python:no_such_module:f"))
