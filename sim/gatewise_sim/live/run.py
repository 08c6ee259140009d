"""A fleet for real: the scenario of virtual time, run by real processes over real MQTT."""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from gatewise.errors import InputError
from gatewise.formats import duration, plural
from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_edge.link.broker_url import Endpoint
from gatewise_sim.fleet.results import EDGE, FleetRun, RowTable, queue_means
from gatewise_sim.fleet.run import FleetPolicy, run_fleet
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.live.deployment import Deployment
from gatewise_sim.live.devices import EdgeProcesses
from gatewise_sim.live.lines import answer_columns, local_medians
from gatewise_sim.live.proxy import DelayProxy
from gatewise_sim.scenario import Scenario
from gatewise_sim.signal_handling import exit_on_termination
from gatewise_sim.timings import Timings

#: Bound on the devices of a live run: each is a process.
MAX_DEVICES: Final = 200
_UPDATE_SECONDS: Final = 0.25
#: Seconds from the start of a run to its first instance.
_LEAD_SECONDS: Final = 0.2
_DEVICE_DEFAULTS: Final = ("breaker", "outstanding")


@dataclass(frozen=True, eq=False, kw_only=True)
class LiveRun:
    """Result of a live fleet: answers and counters, as in virtual time, and measured `timings`.

    `broker` is ``mosquitto``, ``embedded``, or a given URL without user and password. `troubles`
    were not on the schedule; `faults`, with ``what``, ``up``, ``at`` (s), are outages with their
    real times. `behind_ms` says how late instances were given to their devices (``p50``, ``p99``,
    ``max``): this machine causes it, and it is no part of a latency. `cpu_seconds` are of all
    processes, `peak_mb` of the largest.
    """

    fleet: FleetRun
    timings: Timings
    broker: str
    troubles: list[str]
    faults: list[dict[str, Any]]
    behind_ms: dict[str, float]
    cpu_seconds: float
    peak_mb: float


def check_live(scenario: Scenario) -> None:
    """Check a scenario, and a given broker, before anything is started; InputError names it."""
    if scenario.devices > MAX_DEVICES:
        raise InputError(f"devices is {scenario.devices}; a live run has at most {MAX_DEVICES}")
    default = Scenario()
    for name in _DEVICE_DEFAULTS:
        if getattr(scenario, name) != getattr(default, name):
            raise InputError(
                f"{name} goes with the virtual engine: gatewise edge has no such option"
            )
    components = {component for component, *_ in scenario.outages.faults()}
    if scenario.broker is not None:
        Endpoint(scenario.broker)
        if scenario.link_profile.delays or "link" in components:
            DelayProxy(scenario.broker, scenario.link_profile)
        if "broker" in components:
            raise InputError(
                "outage of the broker: a run does not stop a given broker; leave out its URL"
            )
        # Always asked, so that an unreachable broker is found before anything is trained.
        if shared_subscriptions_work(scenario.broker) is False and scenario.workers > 1:
            url = Endpoint(scenario.broker).url
            raise InputError(f"broker {url} does not serve shared subscriptions: run one worker")
    elif scenario.workers > 1 and find_mosquitto() is None:
        raise InputError(
            "the embedded broker serves one worker only: install mosquitto, or run one worker"
        )


def run_live(
    bundle_path: Path,
    instances: Sequence[Any],
    scenario: Scenario,
    table: RowTable,
    *,
    watch: Callable[[float, int], object] | None = None,
) -> LiveRun:
    """Let a fleet of real processes answer the scenario's instances in real time.

    Nothing is left running behind it, whether it returns, raises, or is ended by Ctrl-C, SIGTERM or
    a closed terminal (the last two unless they are handled elsewhere). Devices and workers run the
    bundle in `bundle_path`; `instances` are the rows as a device takes them, fit for JSON, and
    `table` has their outcomes. `watch` gets the time (s) and the number of answers, now and then.
    """
    # the instances, and open files for all devices
    check_live(scenario)
    arrivals = scenario.arrivals(len(table), table.truth)
    names = _names(scenario.devices)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    used_before = _children_cpu()
    has_cloud = table.has_cloud and scenario.policy != "edge-only"
    # broker, workers and devices, which end with the stack
    with exit_on_termination(), ExitStack() as stack:
        deployment = Deployment(stack, bundle_path, scenario, names, has_cloud=has_cloud)
        devices = EdgeProcesses(stack, bundle_path, scenario, names, deployment.url)
        devices.wait_ready(deployment.broker.url)
        began = time.monotonic() + _LEAD_SECONDS
        deployment.begin(began)

        def tick(now: float) -> float:
            if watch is not None:
                watch(max(now, 0.0), len(devices.lines))
            return min(deployment.tick(now), now + _UPDATE_SECONDS)

        deadline = scenario.deadline_ms / 1000.0
        devices.run(arrivals, instances, deadline, began=began, tick=tick)
        devices.stop(deadline + 10.0)
        workers = deployment.stop()
    # figures of what the processes wrote
    fleet = _fleet_run(scenario, table, arrivals, devices, workers)
    behind = 1000.0 * np.asarray(devices.behind or [0.0])
    quantiles = np.percentile(behind, (50, 99, 100)).tolist()
    return LiveRun(
        fleet=fleet,
        timings=_measured_timings(scenario, table, arrivals, fleet),
        broker=deployment.broker.kind,
        troubles=[*devices.troubles, *deployment.troubles],
        faults=deployment.faults,
        behind_ms=dict(zip(("p50", "p99", "max"), quantiles, strict=True)),
        cpu_seconds=_children_cpu() - used_before,
        peak_mb=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    )


def _fleet_run(
    scenario: Scenario,
    table: RowTable,
    arrivals: Arrivals,
    devices: EdgeProcesses,
    workers: Mapping[str, float],
) -> FleetRun:
    answers = answer_columns(scenario, table, arrivals, devices.lines, devices.counters, workers)
    sums: dict[str, float] = {}
    for counters in devices.counters:
        for name, count in counters.items():
            sums[name] = sums.get(name, 0.0) + count
    return FleetRun(
        answers=answers,
        seconds=scenario.seconds,
        devices=scenario.devices,
        counts=sums,
        workers=dict(workers) | queue_means(workers, scenario),
        sampling=f"all of {plural(scenario.devices, 'device')} for {duration(scenario.seconds)}",
        request_first=scenario.policy == "cloud-only",
        lost=len(arrivals.time) - len(answers),
    )


def _measured_timings(
    scenario: Scenario, table: RowTable, arrivals: Arrivals, fleet: FleetRun
) -> Timings:
    """Service times of the run; the hop is the remainder of the median offload.

    The median latency of offloaded instances is compared with virtual time without hops: half of
    the difference is put on each way between broker and worker.
    """
    workers = fleet.workers
    batches = max(workers.get("batches", 0.0), 1.0)
    measured = (fleet.answers.route == EDGE).any()
    timings = Timings(
        edge_ms=local_medians(fleet.answers, table.n_stages),
        run_us=round(workers.get("model_us", 0.0) / batches, 3),
        instance_us=0.0,
        hop_ms=0.0,
        assumed=("message_us", "broker_us") if measured else ("edge_ms", "message_us", "broker_us"),
    )
    live = fleet.answers.latency_ms[fleet.answers.offloaded]
    if not len(live):
        return timings
    policy = FleetPolicy(
        key="system", name="", offload=table.offload, request_first=fleet.request_first
    )
    if fleet.request_first:
        policy = FleetPolicy(key="system", name="", offload=table.can_offload, request_first=True)
    virtual = run_fleet(table, scenario, policy, timings, arrivals=arrivals).answers
    ideal = virtual.latency_ms[virtual.offloaded]
    hop = max(0.0, float(np.median(live) - np.median(ideal)) / 2) if len(ideal) else 0.0
    return msgspec.structs.replace(timings, hop_ms=round(hop, 4))


def _names(devices: int) -> list[str]:
    """Make ids of eight characters, as virtual time assumes; another run has others."""
    run = secrets.token_hex(2)
    return [f"{run}{index:04x}" for index in range(devices)]


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
