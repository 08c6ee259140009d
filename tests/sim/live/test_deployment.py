"""Tests of live runs whose processes are killed, by planned outages or unexpectedly."""

import os
import signal

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.results import CLOUD, FALLBACK, REASON
from gatewise_sim.live.run import LiveRun
from tests.sim.live.runs import make_live_scenario, run_live_fleet
from tests.support.processes import find_descendants, find_descendants_named, read_command_line

pytestmark = pytest.mark.slow

#: Short enough that a killed part causes fallbacks within its outage.
DEADLINE_SECONDS = 0.6
#: Time in which responses that were sent just before an outage reach their devices.
LAST_RESPONSE_SECONDS = 0.3


def run_with_outages(digits, table, *outages: str, **changes) -> tuple[LiveRun, list]:
    """Run a live fleet; return the run and its faults as (component, is_up, time)."""
    scenario = make_live_scenario(
        **{
            "time": "12s",
            "workload": "periodic:100ms",
            "devices": 2,
            "deadline_ms": 1000.0 * DEADLINE_SECONDS,
            "outage": outages,
            **changes,
        }
    )
    live_run = run_live_fleet(digits, table, scenario)
    assert (live_run.fleet.n_lost, live_run.troubles) == (0, [])
    return live_run, [(fault["what"], fault["up"], fault["at"]) for fault in live_run.faults]


def get_max_start_delay(live_run: LiveRun) -> float:
    """Get the largest delay of an instance's start on a busy machine, in seconds."""
    return live_run.send_delay_ms["max"] / 1000.0


def count_routes(live_run: LiveRun, begin: float, end: float) -> tuple[int, int]:
    """Count the cloud's answers and the fallbacks among the instances of a time span."""
    answers = live_run.fleet.answers
    routes = answers.route[(answers.time >= begin) & (answers.time < end)]
    return int((routes == CLOUD).sum()), int((routes == FALLBACK).sum())


def test_killed_workers_are_started_again(digits, table):
    """First one of two workers is killed, and later both."""
    outages = ("workers:1:+1s-+2500ms", "cloud:+13s-+15s")
    live_run, faults = run_with_outages(digits, table, *outages, time="26s", workers=2)
    first_faults = faults[:2]
    later_faults = faults[2:]
    assert [(component, is_up) for component, is_up, _ in first_faults] == [
        ("worker 1", False),
        ("worker 1", True),
    ]
    # the other worker answers in the meantime
    down_time, up_time = (time for _, _, time in first_faults)
    assert count_routes(live_run, down_time + 0.5, up_time)[0] > 0
    assert [(component, is_up) for component, is_up, _ in later_faults] == [
        ("cloud", False),
        ("cloud", True),
    ]
    down_time, up_time = (time for _, _, time in later_faults)
    assert down_time >= 13.0
    assert up_time >= 15.0
    # responses sent just before the outage still reach their devices, and instances that begin less
    # than a deadline before the restart may be answered; it is reported later, hence two deadlines
    last_time = up_time - 2 * DEADLINE_SECONDS - get_max_start_delay(live_run)
    assert count_routes(live_run, down_time + LAST_RESPONSE_SECONDS, last_time)[0] == 0
    assert count_routes(live_run, down_time, up_time)[1] > 0
    reasons = live_run.fleet.answers.reason[live_run.fleet.answers.route == FALLBACK]
    assert set(reasons.tolist()) <= {REASON[name] for name in ("timeout", "breaker-open", "full")}


def test_killed_broker_is_started_again_on_its_port(digits, table):
    live_run, faults = run_with_outages(digits, table, "broker:+2s-+3s", time="13s")
    assert [(component, is_up) for component, is_up, _ in faults] == [
        ("broker", False),
        ("broker", True),
    ]
    down_time, up_time = (time for _, _, time in faults)
    assert count_routes(live_run, 0, down_time - 1.0)[0] > 0
    last_time = up_time - get_max_start_delay(live_run)
    assert count_routes(live_run, down_time + LAST_RESPONSE_SECONDS, last_time)[0] == 0
    answers = live_run.fleet.answers
    assert REASON["link-down"] in answers.reason[answers.route == FALLBACK]
    # each device waits about a second before it connects again, and doubles the wait each time, so
    # that after six seconds it has tried at least twice
    assert count_routes(live_run, up_time + 6.0, 13.0)[0] > 0


def test_silent_link_causes_fallbacks_until_the_outage_ends(digits, table):
    live_run, faults = run_with_outages(digits, table, "link:+4s-+6500ms", time="11s", link="wifi")
    assert [(component, is_up) for component, is_up, _ in faults] == [
        ("link", False),
        ("link", True),
    ]
    down_time, up_time = 4.0, 6.5
    assert count_routes(live_run, 3.0, down_time)[0] > 0
    # messages sent just before the outage may still arrive, and those of instances that begin less
    # than a deadline before its end
    last_time = up_time - DEADLINE_SECONDS - 0.1 - get_max_start_delay(live_run)
    assert count_routes(live_run, down_time + 0.1, last_time)[0] == 0
    assert count_routes(live_run, down_time + 0.1, up_time)[1] > 0
    # a breaker's second pause takes up to 3 s
    assert count_routes(live_run, up_time + 3.2, 11.0)[0] > 0
    assert live_run.fleet.device_counts["late"] > 0


def test_unexpected_ends_of_a_worker_and_the_broker_are_reported(digits, table):
    kill_times: list[float] = []
    other_pids = find_descendants()  # tests may share a broker, which must not be killed

    def kill_worker_and_broker(now: float, n_answers: int) -> None:
        if now > 1.0 and not kill_times:  # in the first half of the run, with requests under way
            kill_times.append(now)
            os.kill(find_descendants_named("gatewise cloud")[0], signal.SIGKILL)
            broker_command = f"{find_mosquitto()} "
            (broker_pid,) = (
                pid
                for pid in find_descendants(excluded_pids=other_pids)
                if read_command_line(pid).startswith(broker_command)
            )
            os.kill(broker_pid, signal.SIGKILL)

    scenario = make_live_scenario(time="4s", devices=2, deadline_ms=300.0)
    live_run = run_live_fleet(digits, table, scenario, on_progress=kill_worker_and_broker)
    assert live_run.fleet.n_lost == 0
    assert any("the mosquitto broker ended" in trouble for trouble in live_run.troubles)
    assert any("worker 1: ended with status -9" in trouble for trouble in live_run.troubles)
    assert live_run.faults == []


@pytest.mark.usefixtures("nothing_left")
def test_worker_that_does_not_start_leaves_no_process(digits, table):
    with pytest.raises(RunError, match=r"worker 1: .*no_such_module"):
        run_live_fleet(
            digits, table, make_live_scenario(devices=2, backend="python:no_such_module:f")
        )
