"""A fleet for real: the settings of virtual time, run by real processes over real MQTT.

A device process holds many logical devices, each with a connection of its own. Instances come when
the settings say so, in real time. Settings of virtual time alone are left aside: ``service``,
``edge_ms``, ``broker_us``, ``hop_ms`` and ``primed``.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.imports import object_path
from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_edge.device.answer import OwnPolicy, Policy
from gatewise_edge.link.broker_url import Endpoint
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.answer_rules import exchange_joules
from gatewise_sim.fleet.answers import FleetRun
from gatewise_sim.fleet.devices.audits import audit_seed
from gatewise_sim.fleet.network.proxy import DelayProxy
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.brokers import RunBroker
from gatewise_sim.live.deployment import Deployment
from gatewise_sim.live.device_processes import DeviceProcesses
from gatewise_sim.live.instances import (
    UPDATE_SECONDS,
    LiveProgress,
    answer_columns,
    draw_instances,
    last_arrival,
    process_schedule,
)
from gatewise_sim.signal_handling import exit_on_termination

#: Devices of a process: paho waits with select(), which knows file descriptors below 1024 only, and
#: a device has three.
_MOST_DEVICES: Final = 250
_USUAL_PROCESSES: Final = 2
_DEVICE_OPTIONS: Final = ("deadline_ms", "outstanding", "breaker")
#: File descriptors that the broker and the links need for a device, and for all else.
_FILES: Final = 4, 256
#: From the last deadline until a run that has not ended is ended.
_GRACE_SECONDS: Final = 20.0
_MOST_NAMED: Final = 16**4  # devices


@dataclass(frozen=True, eq=False, kw_only=True)
class LiveRun(FleetRun):
    """Result of a live fleet: only instances that were answered.

    An answer's time is when the instance was to come; how much later it began is in `behind_ms` and
    no part of a latency. The counters are those of :attr:`.Device.counters`, without those of a
    process that died, and of each worker since it was started last, with its
    ``restarts``.
    """

    troubles: list[str]
    """What went wrong and was not on the schedule."""
    lost: int
    """Instances without an answer."""
    broker: str
    """``"mosquitto"``, ``"embedded"``, or the URL that was given, without user and password."""
    processes: int
    """Processes that the devices ran in."""
    faults: list[dict[str, Any]]
    """``what``, ``up``, ``at`` (s): outages as they really came."""
    behind_ms: dict[str, float]
    """How late instances began: ``p50``, ``p99``, ``max``, of the worst of the processes."""
    cpu_seconds: float
    peak_mb: float
    """Of the device processes while instances came; memory of the largest of them."""


def check_live(settings: FleetSettings, *, broker: str | None = None) -> None:
    """Check settings, and a given broker, before anything is started."""
    if settings.devices > _MOST_NAMED:
        raise InputError(f"devices is {settings.devices}; a live run has at most {_MOST_NAMED}")
    what = {window.what for window in settings.outages.windows}
    if broker is not None:
        Endpoint(broker)
        if settings.link.delays or "link" in what:
            DelayProxy(broker, settings.link)
        if "broker" in what:
            raise InputError(
                "outage of the broker: one that was given is not stopped; leave out its URL"
            )
        if shared_subscriptions_work(broker) is False and settings.workers > 1:
            raise InputError(
                f"broker {Endpoint(broker).url} does not serve shared subscriptions: run one worker"
            )
    elif settings.workers > 1 and find_mosquitto() is None:
        raise InputError(
            "the embedded broker serves one worker only: install mosquitto, or run one worker"
        )


def run_live(
    bundle_path: Path,
    rows: NDArray[np.float32],
    settings: FleetSettings,
    *,
    truth: NDArray[np.int64] | None = None,
    broker: str | None = None,
    processes: int | None = None,
    watch: ProgressListener | None = None,
) -> LiveRun:
    """Let a fleet of real processes answer its instances in real time.

    Nothing is left running behind it, whether it returns, raises, or is ended by Ctrl-C, SIGTERM or
    a closed terminal (the last two unless they are handled elsewhere).

    Shapes: `rows` (n, n_features), `truth` (n,).
    """
    manifest = Bundle.open(bundle_path).manifest
    check_live(settings, broker=broker)
    table = np.ascontiguousarray(rows, np.float32)
    if table.ndim != 2 or not len(table) or table.shape[1] != len(manifest.features):
        raise InputError(f"rows of shape {table.shape}; the bundle has {len(manifest.features)}")
    every = draw_instances(settings, len(table))
    names = _names(settings.devices)
    count = max(processes or _USUAL_PROCESSES, -(-settings.devices // _MOST_DEVICES))
    count = min(count, settings.devices)
    _allow_files(settings.devices)
    progress = LiveProgress(watch or ProgressListener(), every, truth)
    settings.outages.announce(progress.listener.fault, settings.seconds)
    with exit_on_termination(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatewise-run-")))
        np.save(folder / "rows.npy", table)
        has_cloud = manifest.cloud is not None and settings.policy != "edge-only"
        deployment = Deployment(
            stack,
            bundle_path,
            stack.enter_context(RunBroker(broker)),
            names,
            settings,
            workers=settings.workers if has_cloud else 0,
        )
        devices = DeviceProcesses(
            stack,
            {
                "bundle": str(bundle_path),
                "rows": str(folder / "rows.npy"),
                "broker": deployment.url,
                "policy": _named(settings.policy),
                "options": {name: getattr(settings, name) for name in _DEVICE_OPTIONS},
                "audit": settings.audit,
                # By which virtual time audits the same instances.
                "seeds": {name: audit_seed(settings.seed, i) for i, name in enumerate(names)},
            },
            [names[p::count] for p in range(count)],
            [process_schedule(every, p, count) for p in range(count)],
        )
        devices.wait_ready()

        def tick(at: float) -> float:
            progress.advance(at)
            return min(deployment.tick(at), at + UPDATE_SECONDS)

        deadline = settings.deadline_ms / 1000.0
        took = devices.run(
            limit=last_arrival(every, deadline) + deadline + _GRACE_SECONDS,
            on_begin=lambda began: deployment.begin(began, settings.seconds),
            on_answers=progress.add,
            tick=tick,
        )
        progress.advance(took, last=True)
        workers = deployment.stop()
    answers = answer_columns(every, devices.answers)
    figures = devices.figures
    behind = np.array([figure["behind_ms"] for figure in figures]).reshape(-1, 3).max(0, initial=0)
    return LiveRun(
        answers=answers,
        joules=exchange_joules(
            answers, answers.device_ms.astype(np.float64) / 1e3, settings.link.radio
        ),
        devices=dict(devices.counters)
        | {"audit_cost": sum(each.get("audit_cost", 0.0) for each in devices.gauges.values())},
        workers=[_worker_counts(counted) for counted in workers],
        troubles=[*devices.troubles, *deployment.troubles],
        lost=len(every.row) - len(answers),
        seconds=float((answers.time + answers.latency_ms / 1000.0).max(initial=0.0)),
        broker=deployment.broker.kind,
        processes=count,
        faults=deployment.faults,
        behind_ms=dict(zip(("p50", "p99", "max"), behind.tolist(), strict=True)),
        cpu_seconds=sum(figure["cpu_s"] for figure in figures),
        peak_mb=max((figure["peak_mb"] for figure in figures), default=0.0),
        alarms=None if settings.audit is None else _alarms(workers),
    )


def _named(policy: Policy | OwnPolicy) -> str:
    """The policy as another process finds it: its name, or ``module:function``."""
    if not callable(policy):
        return policy
    if not (path := object_path(policy)):
        raise InputError("a live run needs a policy that other processes import: module:function")
    return path


def _alarms(workers: Sequence[Mapping[str, Any]]) -> list[int]:
    tests = [test for counted in workers for test in counted.get("audits", {}).values()]
    return [test["alarm_at"] for test in tests if test.get("alarm")]


def _worker_counts(counted: Mapping[str, Any]) -> dict[str, float]:
    """What a worker counted, as numbers under the names that virtual time has for them."""
    numbers = {
        name: value
        for name, value in counted.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not counted or "model_us" not in counted:
        return numbers
    return {
        **numbers,
        "audits": sum(test["audits"] for test in counted.get("audits", {}).values()),
        "busy": counted["errors"].get("busy", 0),
        "busy_seconds": counted["model_us"] / 1e6,
        "queued_seconds": counted["queue_us"] / 1e6,
    }


def _names(devices: int) -> list[str]:
    """Ids of eight characters, as virtual time counts on; not those of another run."""
    run = secrets.token_hex(2)
    return [f"{run}{index:04x}" for index in range(devices)]


def _allow_files(devices: int) -> None:
    """Let this process, and those it starts, open as many files as connections need."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    needed = _FILES[0] * devices + _FILES[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and needed > hard:
        raise InputError(
            f"{devices} devices need {needed} open files and this machine allows {hard}: "
            "raise the limit (ulimit -Hn), or run fewer devices"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
