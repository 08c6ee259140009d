"""What running a fleet live costs, and what the one thread that works many devices adds.

    python -m benchmarks.bench_live [--quick]

Digits, instances at a hundred a second over all devices, Wi-Fi, a broker and a worker, all on this
machine. First one device by itself, row after row, beside the same device under the scheduler. Then
20, 100 and 500 devices: how late instances begin, processor time, memory, time to get ready. Writes
live.json into benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.cells import write_whole
from benchmarks.twin_bundles import Subject, subject
from gatewise.console import note
from gatewise_edge.device.device import Device
from gatewise_edge.link.mqtt import MqttLink
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.live.brokers import RunBroker
from gatewise_sim.live.deployment import start_workers
from gatewise_sim.live.run import run_live

__all__ = ["main"]

PACKAGES: Final = ("gatewise", "numpy", "onnxruntime", "paho-mqtt")
DEVICES: Final = (20, 100, 500)
RATE: Final = 100.0  # instances a second, over all devices
SECONDS: Final = 30.0
DEADLINE_MS: Final = 2000.0
IN_TURN: Final = 400
#: Of no account: real workers answer.
SERVICE: Final = ServiceTime(0.001, 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = harness.parser("bench_live", __doc__, "a third of the time, 100 devices")
    options = parser.parse_args(arguments)
    seconds = SECONDS / 3 if options.quick else SECONDS
    digits = subject("digits")
    rows = digits.rows
    alone = {"device": _by_itself(digits, rows), "scheduler": _scheduled(digits, rows)}
    for name, found in alone.items():
        note(f"one {name}: {found['offloaded_p50_ms']:.2f} ms to the cloud and back")
    fleets = []
    for devices in DEVICES[1:2] if options.quick else DEVICES:
        fleets.append(_fleet(digits, rows, devices, seconds))
        note(json.dumps(fleets[-1]))
    document = {
        "seconds": seconds,
        "rate": RATE,
        "alone": alone,
        "fleets": fleets,
        **harness.environment(PACKAGES),
    }
    out = harness.out_folder(options)
    write_whole(out / "live.json", json.dumps(document, indent=1) + "\n")
    note(f"wrote {out / 'live.json'}")
    return 0


def _by_itself(digits: Subject, rows: NDArray[np.float32]) -> dict[str, float]:
    """A device in this process, as a user's program would run it."""
    with ExitStack() as stack:
        broker = stack.enter_context(RunBroker())
        bundles = [str(digits.bundle.path)]
        options = {"bundles": bundles, "broker": broker.url, "shared": False, "max_batch": 16}
        start_workers(stack, 1, options)
        link = MqttLink(broker.url, device="alone")
        device = stack.enter_context(
            Device(digits.bundle, link=link, deadline_ms=DEADLINE_MS, check=False)
        )
        link.connect()
        answers = [device.answer(rows[i % len(rows)]) for i in range(IN_TURN)]
    return _latencies(
        np.array([a.latency_ms for a in answers]), np.array([a.route == "cloud" for a in answers])
    )


def _scheduled(digits: Subject, rows: NDArray[np.float32]) -> dict[str, float]:
    """The same device and rows, worked by a device process."""
    run = run_live(
        digits.bundle.path,
        rows,
        FleetSettings(
            devices=1,
            seconds=60.0,
            in_turn=[[i % len(rows) for i in range(IN_TURN)]],
            service=SERVICE,
            deadline_ms=DEADLINE_MS,
        ),
    )
    return _latencies(run.answers.latency_ms, run.answers.route == 1)


def _fleet(
    digits: Subject, rows: NDArray[np.float32], devices: int, seconds: float
) -> dict[str, Any]:
    settings = FleetSettings(
        devices=devices,
        seconds=seconds,
        workload=f"poisson:{RATE / devices:g}/s",
        link=PROFILES["wifi"],
        service=SERVICE,
        deadline_ms=DEADLINE_MS,
    )
    begun, own, others = time.monotonic(), time.process_time(), _children()
    run = run_live(digits.bundle.path, rows, settings)
    took = time.monotonic() - begun
    return {
        "devices": devices,
        "processes": run.processes,
        "broker": run.broker,
        "instances": len(run.answers),
        "lost": run.lost,
        "seconds": took,
        "ready_and_end_seconds": took - run.seconds,
        "behind_ms": run.behind_ms,
        **_latencies(run.answers.latency_ms, run.answers.route == 1),
        # Shares of one processor, while instances came.
        "device_processes_share": run.cpu_seconds / run.seconds,
        # Of the whole run: this process holds the links.
        "owner_cpu_seconds": time.process_time() - own,
        "children_cpu_seconds": _children() - others,
        "device_process_peak_mb": run.peak_mb,
        "owner_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _latencies(ms: NDArray[np.float64], sent: NDArray[np.bool_]) -> dict[str, float]:
    """Medians and 95 % of what went to the cloud and of what did not."""
    found: dict[str, float] = {}
    for name, which in (("offloaded", sent), ("edge", ~sent)):
        p50, p95 = np.percentile(ms[which], (50, 95))
        found |= {f"{name}_p50_ms": float(p50), f"{name}_p95_ms": float(p95)}
    return found


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
