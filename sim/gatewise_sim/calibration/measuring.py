"""Calibrate virtual time by a short live run on this machine: some 15 seconds.

First one device sends rows to one worker, one after another, while the processor time of worker
and broker is read. Then the live engine's own processes do the same, without a link and through
the proxy of an emulated one: the time of each stage's answer, of the whole way to the cloud, and
what the proxy adds. The part of the way that is neither the model's time nor processor time is
halved and put between broker and worker
(:attr:`gatewise_sim.fleet.settings.FleetSettings.hop_ms`).
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.mqtt import MqttLink
from gatewise_export.bundle.bundle import Bundle
from gatewise_signals.blocks.block import Function
from gatewise_sim.calibration.figures import Calibration, model_of
from gatewise_sim.calibration.timing import measure
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.fleet.routes import NO_LABEL, Routes, cloud_model
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.live.brokers import RunBroker, clear_status
from gatewise_sim.live.deployment import backend_option, start_workers
from gatewise_sim.live.run import run_live

PACKAGES: Final = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
#: A link that the proxy emulates while it is measured; it loses nothing.
PROBE: Final = LinkProfile("probe", rtt_ms=8.0, jitter_ms=3.0)
PAUSE_MS: Final = 8.0
DEADLINE_MS: Final = 5000.0
_CONNECT_SECONDS: Final = 15.0
_WARM: Final = 50  # exchanges before those that count
_LEAST_SERVED: Final = 0.9  # share of exchanges that must have been answered
_SECONDS: Final = 15.0
_ROWS: Final = 2000  # of those given, at most
_LEAST: Final = 10
_USUAL: Final = 0.95
_CLOUD: Final = 1


def calibrate(
    bundle_path: str | Path,
    rows: ArrayLike,
    *,
    broker: str | None = None,
    backend: str | None = None,
    functions: Mapping[str, Function] | None = None,
    exchanges: int = 300,
    watch: ProgressListener | None = None,
) -> Calibration:
    """Measure the service times of this machine, with a bundle and rows.

    Shapes: `rows` (n, n_features). `backend` runs the high-cost model, as of ``gatewise cloud``;
    `functions` are those of the bundle's blocks.
    """
    if exchanges < 2 * _LEAST:
        raise InputError(f"exchanges is {exchanges}; give at least {2 * _LEAST}")
    path, listener = Path(bundle_path), watch or ProgressListener()
    began = time.monotonic()
    listener.begin("calibration", _SECONDS, None)

    def done(share: float) -> None:
        listener.advance(Snapshot(at=time.monotonic() - began, done=share))

    bundle = Bundle.open(path).with_functions(functions or {})
    table = np.ascontiguousarray(rows, np.float32)[:_ROWS]
    routes = Routes.from_bundle(bundle, table, backend=backend)
    assumed = Calibration.assumed(routes)
    if not routes.plan.has_cloud or not (routes.cloud_label != NO_LABEL).any():
        edge_ms = _stages(_edge_alone(bundle, table), routes)
        listener.end("calibrated: no instance leaves the device")
        return replace(assumed, edge_ms=edge_ms, source="measured", about=_about(routes))
    done(0.1)
    possible = np.flatnonzero(routes.cloud_label != NO_LABEL)
    with closing(cloud_model(bundle, backend)) as model:
        timing = _timed(model, table[possible], routes)
    done(0.2)
    settings = replace(_in_turn(routes, LinkProfile("none"), exchanges), backend=backend)
    with ExitStack() as stack:
        used = stack.enter_context(RunBroker(broker))
        found = _exchange(bundle, table[np.resize(possible, exchanges)], used, settings)
        done(0.5)
        plain = _live(path, table, settings, used.url)
        done(0.8)
        probe = replace(_in_turn(routes, PROBE, exchanges // 2), backend=backend)
        proxied = _beyond_device(_live(path, table, probe, used.url))
    edge_ms = _stages(_by_stage(plain, routes) or _edge_alone(bundle, table), routes)
    run = ServiceTime.from_timing(timing)
    broker_us = assumed.broker_us if found.broker_us is None else found.broker_us / 2
    way = _beyond_device(plain)
    service, hop = _divide(way, run, found.worker_us, broker_us, assumed.service.message)
    calibration = Calibration(
        model=model_of(routes),
        edge_ms=edge_ms,
        service=service,
        broker_us=round(broker_us, 3),
        hop_ms=round(hop, 6),
        source="measured",
    )
    # What an ideal link of the same kind would have taken is virtual time's to say.
    ideal = _beyond_device(simulate_fleet(routes, calibration.apply(probe)).answers)
    listener.end("calibrated")
    return replace(
        calibration,
        proxy_ms=round(max(0.0, proxied - ideal) / 2, 6),
        about=_about(routes)
        | {
            "broker": used.kind if used.is_own else "given",
            "exchanges": found.count,
            "round_trip_ms": round(found.round_trip_ms, 4),
            "way_ms": round(way, 4),
            "way_proxied_ms": round(proxied, 4),
            "way_ideal_ms": round(ideal, 4),
            "worker_us": found.worker_us and round(found.worker_us, 1),
            "run_us": {str(n): round(1e6 * s, 1) for n, s in timing.items()},
        },
    )


@dataclass(frozen=True)
class _Exchanges:
    """Requests of one instance, one at a time, over MQTT and no link.

    The round trip is the median; the others are processor time an exchange, all threads together,
    and None where it cannot be read.
    """

    count: int
    round_trip_ms: float
    worker_us: float | None
    broker_us: float | None


def _exchange(
    bundle: Bundle, rows: NDArray[np.float32], broker: RunBroker, live: FleetSettings
) -> _Exchanges:
    """Send rows to a real worker, one after another, and measure processor times.

    Batches and backend are the live run's.
    """
    name = f"calibrate-{time.monotonic_ns():x}"
    shared = broker.kind != "embedded"
    if not broker.is_own:
        shared = shared_subscriptions_work(broker.url) is not False
    options = {
        "bundles": [str(bundle.path)],
        "broker": broker.url,
        "max_batch": live.max_batch,
        **backend_option(live.backend),
        **({"pool": f"gw-{name}"} if shared else {"shared": False}),
    }
    with ExitStack() as stack:
        if not broker.is_own:
            stack.callback(clear_status, broker.url, [name])
        worker = start_workers(stack, [options])[0]
        link = MqttLink(broker.url, device=name)
        device = Device(
            bundle, link=link, policy="cloud-only", deadline_ms=DEADLINE_MS, breaker=False,
            check=False,
        )  # fmt: skip
        stack.enter_context(device)
        link.connect(_CONNECT_SECONDS)
        for row in rows[:_WARM]:
            device.answer(row)
        before = [processor_seconds(pid) for pid in (worker.pid, broker.pid)]
        answers = [device.answer(row) for row in rows]
        after = [processor_seconds(pid) for pid in (worker.pid, broker.pid)]
    served = [a.latency_ms for a in answers if a.route == "cloud"]
    if len(served) < _LEAST_SERVED * len(rows):
        raise RunError(
            "calibration", f"the cloud answered {len(served)} of {len(rows)} requests only"
        )
    used = [
        None if b is None or a is None else 1e6 * (a - b) / len(rows)
        for b, a in zip(before, after, strict=True)
    ]
    return _Exchanges(len(rows), statistics.median(served), *used)


def processor_seconds(pid: int | None) -> float | None:
    """Processor time of all threads of a process, in s; None where it cannot be read.

    Linux only: what clock_getcpuclockid(3) gives for a process, which Python has for threads
    alone. ``/proc/<pid>/stat`` counts in hundredths of a second, too coarse for a request.
    """
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def _divide(
    way_ms: float, run: ServiceTime, worker_us: float | None, broker_us: float, message: float
) -> tuple[ServiceTime, float]:
    """Divide the way's time between worker, broker and hops; gives service time, hop in ms."""
    if worker_us is not None:
        message = max(0.0, worker_us / 1e6 - run.mean(1, 0))
    left = way_ms / 1e3 - 2 * broker_us / 1e6 - run.mean(1, 0)
    # Part of a worker's time comes after its answer has left.
    message = min(message, max(0.0, left))
    base, each, message = (round(1e6 * s, 3) / 1e6 for s in (run.base, run.each, message))
    return ServiceTime(base, each, message), max(0.0, 1e3 * (left - message) / 2)


def _in_turn(routes: Routes, link: LinkProfile, exchanges: int) -> FleetSettings:
    """One device that answers rows in turn: so many offloaded ones, and some of each stage."""
    hard = np.flatnonzero(routes.offload)
    if len(hard):
        easy = [
            np.flatnonzero(~routes.offload & (routes.exit == stage))[: exchanges // 4]
            for stage in range(routes.plan.n_stages)
        ]
        # Dealt among the others, as they come in life.
        chosen = np.concatenate([np.resize(hard, exchanges), *easy])
        chosen = np.random.default_rng(0).permutation(chosen)
    else:
        chosen = np.resize(np.flatnonzero(routes.cloud_label != NO_LABEL), exchanges)
    return FleetSettings(
        devices=1,
        seconds=60.0,
        in_turn=[chosen.tolist()],
        # As in life a request finds everybody asleep, which takes longer than in a hurry.
        pause_ms=PAUSE_MS,
        link=link,
        service=ServiceTime(1e-3, 0.0),  # of no account: real workers answer
        deadline_ms=DEADLINE_MS,
        policy="system" if len(hard) else "cloud-only",
    )


def _live(path: Path, table: NDArray[np.float32], settings: FleetSettings, url: str) -> Answers:
    run = run_live(path, table, settings, broker=url)
    if int(np.sum(run.answers.route == _CLOUD)) < _LEAST:
        raise RunError("calibration", "; ".join(run.troubles) or "the cloud hardly answered")
    return run.answers


def _beyond_device(answers: Answers) -> float:
    """Milliseconds of an answer of the cloud's that the device's stages did not take.

    The mean of all but the slowest twentieth, not the median: on a link whose own delay varies,
    what comes on top moves the median by its mean.
    """
    in_cloud = answers.route == _CLOUD
    beyond = np.sort(answers.latency_ms[in_cloud] - answers.device_ms[in_cloud])
    return float(np.mean(beyond[: math.ceil(_USUAL * len(beyond))]))


def _by_stage(answers: Answers, routes: Routes) -> dict[int, list[float]]:
    """Milliseconds by the stage that ended the device's part; nothing if none ran first."""
    if not routes.offload.any():
        return {}
    found: dict[int, list[float]] = {}
    for stage in np.unique(routes.exit[answers.row]).tolist():
        here = routes.exit[answers.row] == stage
        if stage >= 0:
            found[stage] = answers.device_ms[here].tolist()
    return found


def _edge_alone(bundle: Bundle, table: NDArray[np.float32]) -> dict[int, list[float]]:
    """Milliseconds of a device's answers in this process, by the stage that gave them."""
    found: dict[int, list[float]] = {}
    with Device(bundle, policy="edge-only", check=False) as device:
        for row in table:
            try:
                answer = device.answer(row)
            except SensorError:
                continue
            found.setdefault(answer.stage, []).append(answer.latency_ms)
    return found


def _stages(found: dict[int, list[float]], routes: Routes) -> tuple[float, ...]:
    """Median of each stage; a stage at which no row stopped lies between its neighbours."""
    if not found:
        raise InputError("none of the rows can be answered on the device: nothing to calibrate")
    known = sorted(found)
    medians = [float(np.median(found[stage])) for stage in known]
    filled = np.interp(np.arange(routes.plan.n_stages), known, medians)
    return tuple(round(ms, 6) for ms in filled.tolist())


def _timed(model: CloudModel, table: NDArray[np.float32], routes: Routes) -> dict[int, float]:
    return measure(model.run, np.ascontiguousarray(table[:, routes.plan.request_inputs]))


def _about(routes: Routes) -> dict[str, Any]:
    machine: dict[str, Any] = {"processor": platform.machine(), "cpus": os.cpu_count()}
    if hasattr(os, "getloadavg"):
        # Above the calibration's own, about 0.5, others were at work, too.
        machine["load"] = round(os.getloadavg()[0], 2)
    return {
        "rows": len(routes),
        "machine": machine,
        "versions": {name: version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
    }
