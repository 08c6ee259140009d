"""``python -m gatewise_sim.live.device_process``: many devices in a process of their own.

Speaks JSON, one document a line. The first line on standard input is the job::

    {"bundle": path, "rows": path of a .npy, "broker": url, "devices": [name, ...],
     "options": {"deadline_ms": 500, "outstanding": 32, "breaker": true}, "pace": null}

then, for each pass, ``{"policy": "system", "schedule": path of a .npz, "pause_ms": 0}`` (see
:class:`~gatewise_sim.live.scheduler.Schedule`); it answers ``{"event": "ready"}``, waits for
``{"go": t}``, begins at `t` on the machine's monotonic clock, and prints several times a second
``{"event": "answers", "answers": [[...], ...], "late": [[number, weights], ...], "out": n,
"up": n}``: outcomes (the fields of :class:`~gatewise_sim.live.outcome.Outcome`), bytes of
instances told before, instances out, links that are ready. At last
``{"event": "done", "counters": {...}, "figures": {...}}``.
When standard input closes it ends, whatever it is doing. Imports what a device has, nothing
more.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import GatewiseError
from gatewise_edge.device.installed import Installed
from gatewise_edge.device.pacer import Pacer
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import MqttLink
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.live.metered import Desk, MeteredLink
from gatewise_sim.live.scheduler import Bell, LogicalDevice, Schedule, Scheduler, Seat

__all__ = ["main"]

_CONNECT_SECONDS: Final = 30.0
#: Connections in the making at a time: fewer than a listening broker has room for.
_CONNECTING: Final = 32
_CLOSING: Final = 32
_TELL_SECONDS: Final = 0.2
#: Responses that are out when all is answered are waited for so long, to be weighed.
_LINGER_SECONDS: Final = 2.0
_READ_UP_TO: Final = 5  # every so many tellings the links are looked at


class _Job:
    """The devices of this process, and what they answer."""

    def __init__(self, document: dict[str, Any]) -> None:
        bundle = Bundle.open(document["bundle"])
        self.installed = Installed.load(bundle, sensors=None, may_offload=True)
        self.rows: NDArray[np.float32] = np.load(document["rows"], allow_pickle=False)
        self.broker: str = document["broker"]
        self.devices: list[str] = document["devices"]
        self.options: dict[str, Any] = document["options"]
        self.pace: str | None = document["pace"]
        self._out = threading.Lock()

    def say(self, **document: Any) -> None:
        with self._out:
            print(json.dumps(document), flush=True)

    def run_pass(self, order: dict[str, Any], orders: Iterator[dict[str, Any]]) -> None:
        """Make the devices, wait for the word, work them through the schedule."""
        schedule = _read(order)
        desk, bell = Desk(), Bell()
        with ExitStack() as stack:
            seats = self._seats(stack, order["policy"], desk, bell)
            self.say(event="ready")
            began = float(next(orders)["go"])
            scheduler = Scheduler(seats, self.rows, desk, bell)
            used = time.process_time()
            over = threading.Event()
            teller = threading.Thread(target=self._tell, args=(scheduler, over), name="teller")
            teller.start()
            try:
                scheduler.run(schedule, began)
                self._linger(seats)
            finally:
                over.set()
                teller.join()
            used = time.process_time() - used
            counters = Counter[str]()
            for seat in seats:
                counters.update(seat.device.counters)
            self.say(
                event="done", counters=dict(counters), figures=_figures(scheduler.behind, used)
            )

    def _seats(self, stack: ExitStack, policy: str, desk: Desk, bell: Bell) -> list[Seat]:
        """Make the devices and connect them, a few at a time."""
        seats: list[Seat] = []
        connecting: deque[MqttLink] = deque()
        stack.callback(_close, seats)
        for index, name in enumerate(self.devices):
            options = dict(self.options)
            link = None
            if policy != "edge-only":  # it could not use one
                inner = MqttLink(self.broker, device=name)
                link = MeteredLink(inner, name, desk, partial(bell.put, index))
                connecting.append(inner)
            if self.pace is not None and policy == "system":
                options["pacer"] = Pacer.parse(self.pace)
            device = LogicalDevice(self.installed, link=link, policy=policy, **options)
            seats.append(Seat(name, device, link))
            if len(connecting) >= _CONNECTING:
                _wait_ready(connecting.popleft())
        for inner in connecting:
            _wait_ready(inner)
        # Many threads must get their turns, and what was made by now is garbage for nobody.
        sys.setswitchinterval(0.0005)
        gc.collect()
        gc.freeze()
        return seats

    def _tell(self, scheduler: Scheduler, over: threading.Event) -> None:
        links = [seat.link for seat in scheduler.seats if seat.link is not None]
        up, told = len(links), 0
        while True:
            last = over.wait(_TELL_SECONDS)
            answers, late = scheduler.desk.take()
            told += 1
            if told % _READ_UP_TO == 0:
                up = sum(link.ready for link in links)
            self.say(event="answers", answers=answers, late=late, out=scheduler.out, up=up)
            if last:
                return

    def _linger(self, seats: Sequence[Seat]) -> None:
        """Wait for responses that come late: they are paid for, too."""
        until = time.monotonic() + min(_LINGER_SECONDS, self.options["deadline_ms"] / 1000.0)
        links = [seat.link for seat in seats if seat.link is not None]
        while time.monotonic() < until and any(link.awaited > 0 for link in links):
            time.sleep(0.01)


def _read(order: dict[str, Any]) -> Schedule:
    with np.load(order["schedule"], allow_pickle=False) as arrays:
        return Schedule(
            number=arrays["number"],
            device=arrays["device"],
            row=arrays["row"],
            time=arrays.get("time"),
            pause=order["pause_ms"] / 1000.0,
        )


def _wait_ready(link: MqttLink) -> None:
    """Wait for a link; one that was refused tries again in the background.

    Raises
    ------
    LinkError
        If it does not get ready.
    """
    until = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            link.connect(max(0.0, until - time.monotonic()))
            return
        except LinkError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)


def _close(seats: Sequence[Seat]) -> None:
    """Close the devices side by side: each says goodbye, and waits until it was heard."""
    with ThreadPoolExecutor(_CLOSING) as pool:
        list(pool.map(lambda seat: seat.device.close(), seats))


def _figures(behind: Sequence[float], used: float) -> dict[str, Any]:
    """What the process itself took: how late instances began, CPU seconds, peak memory in MB."""
    late = 1000.0 * np.asarray(behind or [0.0])
    return {
        "behind_ms": [float(q) for q in np.percentile(late, (50, 99, 100))],
        "cpu_s": used,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    try:
        # Of this program alone: getrusage also knows what the process was before it became one.
        status = Path("/proc/self/status").read_text("ascii", "replace")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):  # not Linux
        return float("nan")


def _orders() -> Iterator[dict[str, Any]]:
    """Yield what the owner says; end the process when it is gone, even in the middle of a pass.

    Closing the links properly is not worth waiting for a cloud that may be gone, too.
    """
    lines: list[dict[str, Any]] = []
    came = threading.Condition()

    def listen() -> None:
        for line in sys.stdin:
            with came:
                lines.append(json.loads(line))
                came.notify()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with came:
            came.wait_for(lambda: lines)
            order = lines.pop(0)
        yield order


def main() -> int:
    """Take a job and run its passes; 2 on an error of Gatewise's, with one line about it."""
    # Of hundreds of devices each would say the same.
    logging.getLogger("gatewise_edge").setLevel(logging.ERROR)
    orders = _orders()
    try:
        job = _Job(next(orders))
        for order in orders:
            job.run_pass(order, orders)
    except GatewiseError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    # Not sys.exit: the listening thread sits in a read of standard input.
    status = main()
    sys.stdout.flush()
    os._exit(status)
