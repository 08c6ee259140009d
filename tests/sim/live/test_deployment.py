"""Real outages: what is killed comes back, and what dies by itself is named."""

import os
import signal
import tempfile

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.answers import REASON
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.live.run import LiveRun
from tests.sim.live.runs import CLOUD, FALLBACK, run, settings
from tests.sim.recorder import Recorder
from tests.support.processes import below, command_line, named

pytestmark = pytest.mark.slow


def outage(small, text: str, *, seconds: float = 12.0, **changes) -> tuple[LiveRun, list]:
    watch = Recorder()
    chosen = settings(
        **{
            "seconds": seconds,
            "workload": "periodic:100ms",
            "devices": 6,
            "deadline_ms": 600.0,
            "outages": Outages.parse(text),
            **changes,
        }
    )
    live = run(small, chosen, watch=watch)
    assert live.lost == 0
    assert live.troubles == []
    assert len(live.answers) == len(next(iter(chosen.chunks(len(small.rows))))[0])
    assert watch.snapshots[-1].done == 1.0
    return live, [tuple(fault.values()) for fault in live.faults]


def late(live: LiveRun) -> float:
    """Seconds by which an instance began behind its time, at most: this machine may be busy."""
    return live.behind_ms["max"] / 1000.0


def fallbacks(live: LiveRun, begin: float, end: float) -> tuple[int, int]:
    """Answers by the cloud and fallbacks among the instances that came then."""
    here = (live.answers.time >= begin) & (live.answers.time < end)
    routes = live.answers.route[here]
    return int((routes == CLOUD).sum()), int((routes == FALLBACK).sum())


def test_killed_workers_come_back(small):
    """One of two first, later both."""
    text = "workers:1:+1s-+2500ms,cloud:+5s-+7s"
    live, faults = outage(small, text, seconds=14.0, workers=2)
    first, later = faults[:2], faults[2:]
    assert [(name, up) for name, up, _ in first] == [("worker 1", False), ("worker 1", True)]
    assert fallbacks(live, first[0][2] + 0.5, first[1][2])[0] > 0  # the other one's answers
    assert {name for name, _, _ in later} == {"cloud"}
    (down,) = (at for _, up, at in later if not up)
    (back,) = (at for _, up, at in later if up)
    assert down >= 5.0
    assert back >= 7.0
    assert fallbacks(live, 3.5, down)[0] > 0
    # What was on its way to a device in the last moment still comes there.
    assert fallbacks(live, down + 0.3, back - 1.2 - late(live))[0] == 0
    assert fallbacks(live, down, back)[1] > 0
    breaker = 3.0  # its pause before it tries again
    assert fallbacks(live, back + breaker, 14.0)[0] > 0
    assert [worker["restarts"] for worker in live.workers] == [2, 1]
    why = live.answers.reason[live.answers.route == FALLBACK]
    assert set(why.tolist()) <= {REASON[r] for r in ("timeout", "breaker-open", "full")}


def test_a_killed_broker_comes_back_on_its_port(small):
    live, faults = outage(small, "broker:+2s-+3s", seconds=13.0)
    assert [(what, up) for what, up, _ in faults] == [("broker", False), ("broker", True)]
    down, up = (at for _, _, at in faults)
    assert fallbacks(live, 0, down - 1.0)[0] > 0
    assert fallbacks(live, down + 0.3, up - late(live))[0] == 0
    why = live.answers.reason[live.answers.route == FALLBACK]
    assert REASON["link-down"] in why
    # Each device waits before it connects again, at first about a second, twice as long each time.
    assert fallbacks(live, up + 6.0, 13.0)[0] > 0
    assert live.devices["cloud"] == (live.answers.route == CLOUD).sum()


def test_a_link_falls_silent(small):
    """First when the devices have connected, and once more."""
    text = "link:+0s-+1500ms,link:+4s-+6500ms"
    live, faults = outage(small, text, seconds=11.0, link=PROFILES["wifi"])
    assert [(what, up) for what, up, _ in faults] == [("link", False), ("link", True)] * 2
    assert fallbacks(live, 0.1, 0.8 - late(live))[0] == 0
    assert fallbacks(live, 0.1, 1.5)[1] > 0
    assert fallbacks(live, 3.0, 4.0)[0] > 0
    assert REASON["link-down"] not in live.answers.reason[live.answers.time < 4.0]
    # What was on its way in the last moment may have come through.
    assert fallbacks(live, 4.1, 5.8 - late(live))[0] == 0
    assert fallbacks(live, 4.1, 6.5)[1] > 0
    assert fallbacks(live, 9.7, 11.0)[0] > 0
    assert live.devices["late"] > 0
    fell = live.answers.take(live.answers.route == FALLBACK)
    # Responses that came too late are paid for by the instances that they are about.
    assert (fell.payload_down > 0).any()


def test_outages_that_overlap_or_never_end(small):
    live, faults = outage(small, "cloud:+1s-+60s,broker:+2s-+3s", seconds=5.0)
    assert [what for what, _, _ in faults] == ["cloud", "broker", "broker"]
    assert fallbacks(live, 1.5, 5.0)[0] == 0
    assert live.workers == [{}]


def test_a_worker_and_a_broker_that_die_unasked_are_named(small):
    done: list[str] = []
    others = below()  # a broker that tests share must live

    def kill(snapshot: Snapshot) -> None:
        if snapshot.at > 1.0 and not done:
            done.append("x")
            os.kill(named("live.worker_process")[0], signal.SIGKILL)
            program = f"{find_mosquitto()} "
            (broker,) = (p for p in below(aside=others) if command_line(p).startswith(program))
            os.kill(broker, signal.SIGKILL)

    live = run(small, settings(seconds=4.0, devices=4, deadline_ms=300.0), watch=Recorder(kill))
    assert live.lost == 0
    assert any("the mosquitto broker ended" in trouble for trouble in live.troubles)
    assert any("cloud worker 1: ended with status -9" in trouble for trouble in live.troubles)
    assert live.faults == []


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_does_not_start_leaves_nothing(small, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        "gatewise_sim.live.deployment.backend_option",
        lambda backend: {"public_key": "nowhere.pub"},
    )
    with pytest.raises(RunError, match=r"cloud worker 1: .*nowhere\.pub"):
        run(small, settings(devices=2))
    assert list(tmp_path.iterdir()) == []
