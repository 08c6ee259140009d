"""``python -m gatewise_sim.live.device_process``: many devices in a process of their own.

Exchanges JSON, one document a line. The first line on standard input is the job::

    {"bundle": path, "rows": path of a .npy, "broker": url, "devices": [name, ...],
     "options": {"deadline_ms": 500, "outstanding": 32, "breaker": true},
     "audit": null, or a share, "seeds": {name: 7, ...}, "policy": "system", or
     "module:function", "schedule": {...}}

(the fields of :class:`~gatewise_sim.live.scheduler.Schedule`); it answers
``{"event": "ready"}``, waits for ``{"go": t}``, begins at `t` on the machine's monotonic clock, and
prints several times a second ``{"event": "answers", "answers": [[...], ...], "late": [[number,
bytes], ...]}``: the fields of :class:`~gatewise_sim.live.metered.LiveAnswer`, bytes of instances
reported before. At last ``{"event": "done", "counters": {...}, "gauges": {name: {...}, ...},
"figures": {...}}``.
When standard input closes it ends, whatever it is doing. Imports what a device has, nothing
more.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from gatewise.errors import GatewiseError
from gatewise.imports import import_object
from gatewise_cloud.child_process import send_message
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import MqttLink
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.live.metered import AnswerBox, MeteredLink
from gatewise_sim.live.scheduler import (
    Deliveries,
    DeviceSlot,
    LogicalDevice,
    Schedule,
    Scheduler,
)

_CONNECT_SECONDS: Final = 30.0
#: Connections in the making at a time: fewer than a listening broker has room for.
_CONNECTING: Final = 32
_CLOSING: Final = 32
_REPORT_SECONDS: Final = 0.2
#: Responses that are out when all is answered are waited for so long, to be counted.
_LINGER_SECONDS: Final = 2.0

Job = dict[str, Any]


def main() -> int:
    """Take a job and work through it; 2 on an error of Gatewise's, with one line about it."""
    # Of hundreds of devices each would say the same.
    logging.getLogger("gatewise_edge").setLevel(logging.ERROR)
    messages: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(messages,), daemon=True).start()
    try:
        _work(messages.get(), messages)
    except GatewiseError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


def _receive(messages: queue.SimpleQueue[Job]) -> None:
    """Read the owner's messages; end the process when it is gone, even in the middle of a run.

    Closing the links properly is not worth waiting for a cloud that may be gone, too.
    """
    for line in sys.stdin:
        messages.put(json.loads(line))
    os._exit(0)


def _work(job: Job, messages: queue.SimpleQueue[Job]) -> None:
    """Make the devices, wait for the word, work them through the schedule."""
    rows = np.load(job["rows"], allow_pickle=False)
    columns: dict[str, Any] = {
        name: np.array(value) if isinstance(value, list) else value
        for name, value in job["schedule"].items()
    }
    schedule = Schedule(**columns)
    box, deliveries = AnswerBox(), Deliveries()
    with ExitStack() as stack:
        slots = _connected_devices(job, stack, box, deliveries)
        send_message({"event": "ready"})
        began = float(messages.get()["go"])
        scheduler = Scheduler(slots, rows, box, deliveries)
        used = time.process_time()
        over = threading.Event()
        reports = threading.Thread(target=_report, args=(scheduler, over), name="reports")
        reports.start()
        try:
            scheduler.run(schedule, began)
            _linger(slots, job["options"]["deadline_ms"] / 1000.0)
        finally:
            over.set()
            reports.join()
        used = time.process_time() - used
        counters = Counter[str]()
        for slot in slots:
            counters.update(slot.device.counters)
        gauges = {slot.name: slot.device.gauges for slot in slots}
        figures = _figures(scheduler.behind, used)
        send_message(
            {"event": "done", "counters": dict(counters), "gauges": gauges, "figures": figures}
        )


def _connected_devices(
    job: Job, stack: ExitStack, box: AnswerBox, deliveries: Deliveries
) -> list[DeviceSlot]:
    """Make the devices and connect them, a few at a time."""
    installed = InstalledBundle.load(Bundle.open(job["bundle"]), offloads=True, functions=None)
    policy, slots = job["policy"], list[DeviceSlot]()
    if ":" in policy:
        policy = import_object("policy", policy)
    connecting: deque[MqttLink] = deque()
    stack.callback(_close, slots)
    for index, name in enumerate(job["devices"]):
        options = dict(job["options"])
        link = None
        if policy != "edge-only":  # it could not use one
            inner = MqttLink(job["broker"], device=name)
            link = MeteredLink(inner, name, box, partial(deliveries.put, index))
            connecting.append(inner)
        if job["audit"] is not None and policy == "system":
            options |= {"audit": job["audit"], "seed": job["seeds"][name]}
        device = LogicalDevice(installed, link=link, policy=policy, **options)
        slots.append(DeviceSlot(name, device, link))
        if len(connecting) >= _CONNECTING:
            _wait_ready(connecting.popleft())
    for inner in connecting:
        _wait_ready(inner)
    # Many threads must get their turns, and what was made by now is garbage for nobody.
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    return slots


def _wait_ready(link: MqttLink) -> None:
    """Wait for a link, or raise LinkError; one that was refused tries again in the background."""
    until = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            link.connect(max(0.0, until - time.monotonic()))
            return
        except LinkError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)


def _report(scheduler: Scheduler, over: threading.Event) -> None:
    """Send answers several times a second until all is over."""
    last = False
    while not last:
        last = over.wait(_REPORT_SECONDS)
        answers, late = scheduler.box.take()
        send_message({"event": "answers", "answers": answers, "late": late})


def _linger(slots: Sequence[DeviceSlot], deadline: float) -> None:
    """Wait for responses that come late: they are paid for, too."""
    until = time.monotonic() + min(_LINGER_SECONDS, deadline)
    links = [slot.link for slot in slots if slot.link is not None]
    while time.monotonic() < until and any(link.awaited > 0 for link in links):
        time.sleep(0.01)


def _close(slots: Sequence[DeviceSlot]) -> None:
    """Close the devices side by side: each waits until its goodbye is confirmed."""
    with ThreadPoolExecutor(_CLOSING) as pool:
        list(pool.map(lambda slot: slot.device.close(), slots))


def _figures(behind: Sequence[float], used: float) -> dict[str, Any]:
    """Cost of the process itself: delays of beginnings, CPU seconds, peak memory in MB."""
    late = 1000.0 * np.asarray(behind or [0.0])
    return {
        "behind_ms": [float(q) for q in np.percentile(late, (50, 99, 100))],
        "cpu_s": used,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    try:
        # Of this program alone: getrusage also counts what the process was before it became one.
        status = Path("/proc/self/status").read_text("ascii", "replace")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):  # not Linux
        return float("nan")


if __name__ == "__main__":
    # Not sys.exit: the receiving thread sits in a read of standard input.
    status = main()
    sys.stdout.flush()
    os._exit(status)
