"""What one request costs broker and worker, apart from all that waits: processor time of each."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_edge.device.device import Device
from gatewise_edge.link.mqtt import MqttLink
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.errors import RunError
from gatewise_sim.live.brokers import forget
from gatewise_sim.live.processes import start_workers

__all__ = ["Exchanges", "exchange", "processor_seconds", "start_broker"]

DEADLINE_MS: Final = 5000.0
_CONNECT_SECONDS: Final = 15.0
_WARM: Final = 50  # exchanges before those that count
_LEAST: Final = 0.9  # of them must have been answered


@dataclass(frozen=True)
class Exchanges:
    """Requests of one instance, one at a time, over MQTT and no link.

    Attributes
    ----------
    count : int
    round_trip_ms : float
        From a device's asking to its answer; median.
    worker_us, broker_us : float or None
        Processor time an exchange, all threads together; None where it cannot be known.
    """

    count: int
    round_trip_ms: float
    worker_us: float | None
    broker_us: float | None


def start_broker(stack: ExitStack) -> MosquittoBroker | EmbeddedBroker:
    """Start mosquitto if it is installed, else the embedded broker; it ends with `stack`."""
    if find_mosquitto() is None:
        return stack.enter_context(EmbeddedBroker())
    return stack.enter_context(MosquittoBroker())


def exchange(
    bundle_path: Path,
    rows: NDArray[np.float32],
    *,
    url: str,
    shared: bool,
    broker_pid: int | None,
    max_batch: int,
) -> Exchanges:
    """Ask a real worker about rows, one after another, and see who works how long for it.

    Parameters
    ----------
    bundle_path : Path
    rows : ndarray of float32, shape (n, n_features)
        Asked about in this order.
    url : str
        Of the broker.
    shared : bool
        Whether it serves shared subscriptions.
    broker_pid : int or None
        Its process; None of a broker that is not ours.
    max_batch : int
        The worker's. One that has measured its model answers some requests a little quicker.

    Raises
    ------
    RunError
        If the worker does not get ready, or hardly answers.
    """
    name = f"calibrate-{time.monotonic_ns():x}"
    options = {
        "bundles": [str(bundle_path)],
        "broker": url,
        "max_batch": max_batch,
        **({"pool": f"gw-{name}"} if shared else {"shared": False}),
    }
    with ExitStack() as stack:
        if broker_pid is None:
            # Somebody's broker would keep the device's last words for ever.
            stack.callback(forget, url, [name])
        worker = start_workers(stack, 1, options)[0]
        link = MqttLink(url, device=name)
        device = stack.enter_context(
            Device(
                Bundle.open(bundle_path),
                link=link,
                policy="cloud-only",
                deadline_ms=DEADLINE_MS,
                breaker=False,
                check=False,
            )
        )
        link.connect(_CONNECT_SECONDS)
        for row in rows[:_WARM]:
            device.answer(row)
        before = [_told(pid) for pid in (worker.pid, broker_pid)]
        answers = [device.answer(row) for row in rows]
        after = [_told(pid) for pid in (worker.pid, broker_pid)]
    served = [a.latency_ms for a in answers if a.route == "cloud"]
    if len(served) < _LEAST * len(rows):
        raise RunError(
            "calibration", f"the cloud answered {len(served)} of {len(rows)} requests only"
        )
    worked = [
        None if b is None or a is None else 1e6 * (a - b) / len(rows)
        for b, a in zip(before, after, strict=True)
    ]
    return Exchanges(len(rows), statistics.median(served), worked[0], worked[1])


def _told(pid: int | None) -> float | None:
    return None if pid is None else processor_seconds(pid)


def processor_seconds(pid: int) -> float | None:
    """Tell how long all threads of a process have worked, in s; None where that is not told.

    Linux only: what clock_getcpuclockid(3) gives for a process, which Python has for threads
    alone. ``/proc/<pid>/stat`` counts in hundredths of a second, too coarse for a request.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None
