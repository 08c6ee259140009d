"""Runs of a fleet of real processes over real MQTT."""

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
from gatewise_cloud.signal_handling import exit_on_termination
from gatewise_edge.link.endpoint import Endpoint
from gatewise_sim.fleet.results import EDGE, FleetRun, RowTable, queue_means
from gatewise_sim.fleet.run import FleetPolicy, run_fleet
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.live.deployment import Deployment
from gatewise_sim.live.devices import EdgeProcesses
from gatewise_sim.live.lines import answer_columns, local_medians
from gatewise_sim.live.proxy import DelayProxy
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

#: Largest number of devices, because each one is a process.
MAX_DEVICES: Final = 200
#: Time between two reports of progress.
_PROGRESS_SECONDS: Final = 0.25
#: Seconds until the start of a run, in which the schedule of outages is set up.
_LEAD_SECONDS: Final = 0.2
#: Time after the deadline in which devices must write their summaries and end.
_STOP_SECONDS: Final = 10.0
#: Settings of devices that ``gatewise edge`` does not have; a live run uses their defaults.
_VIRTUAL_ONLY_SETTINGS: Final = ("breaker", "outstanding")


@dataclass(frozen=True, eq=False, kw_only=True)
class LiveRun:
    """Result of a live run.

    Attributes
    ----------
    fleet : FleetRun
        Answers and counters.
    timings : Timings
        Measured service times.
    broker : str
        ``mosquitto``, ``embedded``, or the URL of a given broker without user and password.
    troubles : list of str
        Failures that were not scheduled.
    faults : list of dict
        Outages with their real times: ``what``, ``up`` and ``at`` (s).
    send_delay_ms : dict of str to float
        Quantiles of the delay with which instances were sent to their devices: ``p50``, ``p99``
        and ``max``. The load of this machine causes it, and latencies do not include it.
    cpu_seconds : float
        Processor time of the processes of the run.
    peak_mb : float
        Peak memory (MB) of the largest child process that has ended, also of earlier runs.
    """

    fleet: FleetRun
    timings: Timings
    broker: str
    troubles: list[str]
    faults: list[dict[str, Any]]
    send_delay_ms: dict[str, float]
    cpu_seconds: float
    peak_mb: float


def check_live(scenario: Scenario) -> None:
    """Check a scenario and its given broker before a run; InputError names the problem."""
    if scenario.devices > MAX_DEVICES:
        raise InputError(f"devices is {scenario.devices}; a live run has at most {MAX_DEVICES}")
    default_scenario = Scenario()
    for name in _VIRTUAL_ONLY_SETTINGS:
        if getattr(scenario, name) != getattr(default_scenario, name):
            raise InputError(
                f"{name} can only be used with the virtual engine: gatewise edge has no such option"
            )
    failing_components = {span.what for span in scenario.outages.spans_within_run()}
    if scenario.broker is not None:
        # the constructors refuse a malformed URL, and a URL that the proxy of a link cannot reach
        Endpoint(scenario.broker)
        if scenario.link_profile.delays_messages or "link" in failing_components:
            DelayProxy(scenario.broker, scenario.link_profile)
        if "broker" in failing_components:
            raise InputError(
                "outage of the broker: a run does not stop a given broker; omit its URL"
            )
        # Call it also for one worker, because it reports an unreachable broker. The result None is
        # accepted, because this client may lack a right that workers have.
        if shared_subscriptions_work(scenario.broker) is False and scenario.workers > 1:
            url = Endpoint(scenario.broker).url
            raise InputError(f"broker {url} does not support shared subscriptions: run one worker")
    elif scenario.workers > 1 and find_mosquitto() is None:
        raise InputError(
            "the embedded broker supports only one worker: install mosquitto, or run one worker"
        )


def run_live(
    bundle_path: Path,
    instances: Sequence[Any],
    scenario: Scenario,
    table: RowTable,
    *,
    on_progress: Callable[[float, int], object] | None = None,
) -> LiveRun:
    """Run a fleet of real processes in real time.

    All processes end with the call, also on an error, on Ctrl-C, and on SIGTERM or a closed
    terminal unless the program handles these signals itself.

    Parameters
    ----------
    bundle_path : Path
        Bundle of devices and workers.
    instances : sequence
        Input of a device for each row, as JSON values.
    scenario : Scenario
        Deployment and workload.
    table : RowTable
        Outcomes of the rows.
    on_progress : callable, optional
        Called regularly with the time (s) and the number of answers so far.

    Returns
    -------
    LiveRun
        Answers, counters and measured times.

    Raises
    ------
    InputError
        If the scenario cannot be run live.
    RunError
        If a process does not start.
    """
    check_live(scenario)
    arrivals = scenario.draw_fleet_arrivals(len(table), table.truth)
    device_ids = _make_device_ids(scenario.devices)
    # Each device needs several pipes, and the usual soft limit is 1,024 open files.
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    cpu_seconds_before = _read_children_cpu_seconds()
    has_cloud = table.has_cloud and scenario.policy != "edge-only"
    # The stack stops broker, workers and devices, also after an error.
    with exit_on_termination(), ExitStack() as stack:
        deployment = Deployment(stack, bundle_path, scenario, device_ids, has_cloud=has_cloud)
        edge_processes = EdgeProcesses(stack, bundle_path, scenario, device_ids, deployment.url)
        # Listen directly at the broker, because the emulated link is for devices.
        edge_processes.wait_ready(deployment.broker.url)
        start_time = time.monotonic() + _LEAD_SECONDS
        deployment.begin(start_time)

        def tick(now: float) -> float:
            """Make the changes that are due at `now` (s); return the time of the next call."""
            if on_progress is not None:
                on_progress(max(now, 0.0), len(edge_processes.lines))  # the lead has negative times
            return min(deployment.tick(now), now + _PROGRESS_SECONDS)

        deadline_s = scenario.deadline_ms / 1000.0
        edge_processes.run(arrivals, instances, deadline_s, start_time=start_time, tick=tick)
        # Stop the devices before the workers, so that the last requests are still answered.
        edge_processes.stop(deadline_s + _STOP_SECONDS)
        worker_counts = deployment.stop()
    # All processes have ended, so that their output and their use of resources are complete.
    fleet = _make_fleet_run(scenario, table, arrivals, edge_processes, worker_counts)
    send_delays_ms = 1000.0 * np.asarray(edge_processes.send_delays or [0.0])
    delay_quantiles = np.percentile(send_delays_ms, (50, 99, 100)).tolist()
    return LiveRun(
        fleet=fleet,
        timings=_measure_timings(scenario, table, arrivals, fleet),
        broker=deployment.broker.kind,
        troubles=[*edge_processes.troubles, *deployment.troubles],
        faults=deployment.faults,
        send_delay_ms=dict(zip(("p50", "p99", "max"), delay_quantiles, strict=True)),
        cpu_seconds=_read_children_cpu_seconds() - cpu_seconds_before,
        peak_mb=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,  # from KiB
    )


def _make_fleet_run(
    scenario: Scenario,
    table: RowTable,
    arrivals: Arrivals,
    edge_processes: EdgeProcesses,
    worker_counts: Mapping[str, float],
) -> FleetRun:
    answers = answer_columns(
        scenario, table, arrivals, edge_processes.lines, edge_processes.counters, worker_counts
    )
    # The counters of a device that did not end normally are empty.
    counter_sums: dict[str, float] = {}
    for counters in edge_processes.counters:
        for name, count in counters.items():
            counter_sums[name] = counter_sums.get(name, 0.0) + count
    return FleetRun(
        answers=answers,
        seconds=scenario.seconds,
        n_devices=scenario.devices,
        device_counts=counter_sums,
        worker_counts=dict(worker_counts) | queue_means(worker_counts, scenario),
        sampling=f"all of {plural(scenario.devices, 'device')} for {duration(scenario.seconds)}",
        is_cloud_first=scenario.policy == "cloud-only",
        n_lost=len(arrivals.time) - len(answers),
    )


def _measure_timings(
    scenario: Scenario, table: RowTable, arrivals: Arrivals, fleet: FleetRun
) -> Timings:
    """Compute the service times of the run; `assumed` names those that it could not measure.

    `hop_ms` is the time between broker and worker. It is computed from the median latencies of the
    offloaded instances, in this run and in a virtual run without that time. Request and response
    each take it once::

        hop_ms = (median live latency - median virtual latency) / 2
    """
    worker_counts = fleet.worker_counts
    n_batches = worker_counts.get("batches", 0.0)
    # Processes do not measure these; `hop_ms` contains their deviation from the assumed values.
    assumed_fields = ["message_us", "broker_us"]
    if not (fleet.answers.route == EDGE).any():
        assumed_fields.append("edge_ms")
    if not n_batches:
        assumed_fields += ["run_us", "instance_us"]
    timings = Timings(
        edge_ms=local_medians(fleet.answers, table.n_stages),
        # workers measure whole batches, so the mean time of a batch includes its instances
        run_us=round(worker_counts.get("model_us", 0.0) / max(n_batches, 1.0), 3),
        instance_us=0.0,
        hop_ms=0.0,
        assumed=tuple(assumed_fields),
    )
    live_ms = fleet.answers.latency_ms[fleet.answers.is_offloaded]
    if not len(live_ms):
        return msgspec.structs.replace(timings, assumed=(*timings.assumed, "hop_ms"))
    # Repeat the run in virtual time, with the same instances and the same choice of offloads.
    policy = FleetPolicy(
        key="system",
        name="",
        is_offloaded=table.can_offload if fleet.is_cloud_first else table.is_offloaded,
        is_cloud_first=fleet.is_cloud_first,
        has_audits_and_limit=True,
    )
    virtual_answers = run_fleet(
        table, scenario, policy, timings, arrivals=arrivals, n_devices=scenario.devices
    ).answers
    virtual_ms = virtual_answers.latency_ms[virtual_answers.is_offloaded]
    hop_ms = 0.0
    if len(virtual_ms):
        hop_ms = max(0.0, float(np.median(live_ms) - np.median(virtual_ms)) / 2)
    return msgspec.structs.replace(timings, hop_ms=round(hop_ms, 4))


def _make_device_ids(n_devices: int) -> list[str]:
    """Make ids that are unique to the run, so that a given broker may serve several runs.

    They are as long as the ids of virtual devices, so that messages have the same size.
    """
    prefix = secrets.token_hex(2)
    return [f"{prefix}{index:04x}" for index in range(n_devices)]


def _read_children_cpu_seconds() -> float:
    """Read the processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
