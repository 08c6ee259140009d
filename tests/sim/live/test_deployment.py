"""Tests of live runs in which processes are killed, by planned outages or unexpectedly."""

import os
import signal
import socket
import time
from contextlib import ExitStack

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_edge.link.endpoint import Endpoint
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.results import CLOUD, FALLBACK, REASON
from gatewise_sim.live.deployment import Deployment
from gatewise_sim.live.run import LiveRun
from tests.sim.live.runs import make_live_scenario, run_live_fleet
from tests.support.processes import (
    TIMEOUT_S,
    find_descendants,
    find_descendants_named,
    read_command_line,
)
from tests.support.waiting import holds_within

pytestmark = pytest.mark.slow

#: Short enough that a killed part causes fallbacks within its outage.
DEADLINE_SECONDS = 0.6
#: Time in which responses that were sent just before an outage reach their devices.
LAST_RESPONSE_SECONDS = 0.3


def count_routes(live_run: LiveRun, begin: float, end: float) -> tuple[int, int]:
    """Count the cloud's answers and the fallbacks among the instances of a time span."""
    answers = live_run.fleet.answers
    routes = answers.route[(answers.time >= begin) & (answers.time < end)]
    return int((routes == CLOUD).sum()), int((routes == FALLBACK).sum())


@pytest.fixture
def deploy(digits):
    """Function that starts the broker and the workers of a scenario."""
    with ExitStack() as stack:
        yield lambda scenario: Deployment(
            stack, digits.bundle.path, scenario, ["d"], has_cloud=True
        )


def test_killed_workers_and_broker_are_started_again(deploy):
    outages = ("workers:1:+1s-+2s", "cloud:+3s-+4s", "broker:+5s-+6s")
    deployment = deploy(make_live_scenario(time="9s", workers=2, outage=outages))
    broker_port = Endpoint(deployment.broker.url).port
    assert len(find_descendants_named("gatewise cloud")) == 2
    deployment.begin(time.monotonic())
    expected_faults = []
    for now, component, is_up, n_workers in [
        (1.0, "worker 1", False, 1),
        (2.0, "worker 1", True, 2),
        (3.0, "cloud", False, 0),
        (4.0, "cloud", True, 2),
        (5.0, "broker", False, 2),
        (6.0, "broker", True, 2),
    ]:
        expected_faults.append((component, is_up))

        def has_changed(now=now) -> bool:
            deployment.tick(now)
            return len(deployment.faults) == len(expected_faults)

        assert holds_within(has_changed, TIMEOUT_S)
        assert [(fault["what"], fault["up"]) for fault in deployment.faults] == expected_faults
        assert len(find_descendants_named("gatewise cloud")) == n_workers
        if component == "broker":
            assert is_listening(broker_port) is is_up
    deployment.stop()
    assert deployment.troubles == []


def is_listening(port: int) -> bool:
    """Whether a server accepts connections on a port of this machine."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_outages_of_link_and_cloud_cause_fallbacks(digits, table):
    """Nothing arrives over the link for a while; later the workers are killed until the end."""
    scenario = make_live_scenario(
        time="10s", workload="periodic:100ms", devices=2, deadline_ms=1000.0 * DEADLINE_SECONDS,
        outage=("link:+1500ms-+4s", "cloud:+8s-+1h"), link="wifi",
    )  # fmt: skip
    live_run = run_live_fleet(digits, table, scenario)
    assert (live_run.fleet.n_lost, live_run.troubles) == (0, [])
    assert [(fault["what"], fault["up"]) for fault in live_run.faults] == [
        ("link", False), ("link", True), ("cloud", False),
    ]  # fmt: skip
    max_start_delay = live_run.send_delay_ms["max"] / 1000.0  # seconds, on a busy machine
    link_down_time, link_up_time = 1.5, 4.0
    assert count_routes(live_run, 0.0, link_down_time)[0] > 0
    # messages sent just before the outage may still arrive, and those of instances that begin less
    # than a deadline before its end
    last_time = link_up_time - DEADLINE_SECONDS - 0.1 - max_start_delay
    assert count_routes(live_run, link_down_time + 0.1, last_time)[0] == 0
    assert count_routes(live_run, link_down_time + 0.1, link_up_time)[1] > 0
    # a breaker's second pause takes up to 3 s
    assert count_routes(live_run, link_up_time + 3.2, 8.0)[0] > 0
    assert live_run.fleet.device_counts["late"] > 0
    # responses sent just before the outage of the cloud still reach their devices
    cloud_down_time = live_run.faults[-1]["at"]
    assert cloud_down_time >= 8.0
    assert count_routes(live_run, cloud_down_time + LAST_RESPONSE_SECONDS, 10.0)[0] == 0
    assert count_routes(live_run, cloud_down_time, 10.0)[1] > 0
    reasons = live_run.fleet.answers.reason[live_run.fleet.answers.route == FALLBACK]
    assert set(reasons.tolist()) <= {REASON[name] for name in ("timeout", "breaker-open", "full")}


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
