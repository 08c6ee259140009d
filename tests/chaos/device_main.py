"""Program of a device with a control timer.

The first line on standard input is the job as JSON: ``bundle``, ``rows`` (a .npy), ``order`` (rows
to answer, one after another), ``rate`` (instances a second), ``broker`` (or null), ``device``,
``deadline_ms`` and, optionally, ``until_told`` (repeat the rows until a third line comes),
``update`` (``store``, ``trust``, ``url``, ``ca_file``) and ``clock_jumps`` (the time of day jumps
by years in both directions, every half second).

The program prints ``{"event": "ready"}``, waits for a second line, and prints ``{"event": "answer",
...}`` for each answer. At the end it prints ``{"event": "done", ...}`` with the counters and, for
each answer after its deadline, the delay of the control timer in that time. The timer is a thread
that only sleeps, so its delay shows that the machine was busy.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from gatewise.errors import GatewiseError
from gatewise_edge import Device, MqttLink
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.bundle.bundle import Bundle

TICK = 0.01


class ControlTimer:
    """Thread that wakes every 10 ms and records its delays."""

    def __init__(self) -> None:
        self.overslept: list[tuple[float, float]] = []  # (time of waking, delay in s)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            due = time.monotonic() + TICK
            self._end.wait(TICK)
            late = time.monotonic() - due
            if late > TICK:
                self.overslept.append((time.monotonic(), late))

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def worst(self, since: float, until: float) -> float:
        """Largest delay between two times, in s."""
        delays = [late for woke, late in self.overslept if woke >= since and woke - late <= until]
        return max(delays, default=0.0)


def jump_clock() -> None:
    """Let the time of day of this process jump, as after a wrong time from a server."""
    true_time = time.time
    begin = time.monotonic()

    def jumping() -> float:
        turn = int(2 * (time.monotonic() - begin))
        return true_time() + (0.0, 3e8, -3e8, 10.0, -86400.0)[turn % 5]

    time.time = jumping


def say(**document: Any) -> None:
    print(json.dumps(document), flush=True)


def rows_to_answer(job: dict[str, Any]) -> Iterator[int]:
    """Yield the rows in order, once or repeatedly until another line comes."""
    if not job.get("until_told"):
        yield from job["order"]
        return
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    yield from itertools.takewhile(lambda _: not stop.is_set(), itertools.cycle(job["order"]))


def start(
    job: dict[str, Any], link: MqttLink | None, stack: ExitStack
) -> tuple[Device, Updater | None]:
    """Make the device and, if the job has updates, its updater."""
    options = {"link": link, "deadline_ms": job["deadline_ms"]}
    update = job.get("update")
    if update is None:
        return stack.enter_context(Device(job["bundle"], **options)), None
    store = Store(update["store"])
    bundle = Bundle.open(next(iter(store.start()), job["bundle"]), for_device=True)
    settings = UpdateSettings(
        urls=[update["url"]],
        trust=update["trust"],
        first=job["bundle"],
        device=job["device"],
        ca_file=update["ca_file"],
        min_interval=0.0,
    )
    updater = Updater(store, settings, link=link)
    device = stack.enter_context(Device(bundle, observe=updater.observe, **options))
    stack.enter_context(updater)
    updater.start(device)
    return device, updater


def main() -> None:
    job = json.loads(sys.stdin.readline())
    rows = np.load(job["rows"], allow_pickle=False)
    if job.get("clock_jumps"):
        jump_clock()
    with ExitStack() as stack:
        link = None if job["broker"] is None else MqttLink(job["broker"], device=job["device"])
        device, updater = start(job, link, stack)
        if link is not None and job.get("wait_for_link", True):
            link.connect(20.0)
        say(event="ready")
        sys.stdin.readline()
        timer = ControlTimer()
        begin = time.monotonic()
        late = []
        for number, row in enumerate(rows_to_answer(job)):
            pause = begin + number / job["rate"] - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            started = time.monotonic()
            try:
                answer = device.answer(rows[row])
            except GatewiseError as error:
                say(event="error", number=number, row=row, message=str(error))
                continue
            ended = time.monotonic()
            late_ms = 1e3 * (ended - started) - job["deadline_ms"]
            if late_ms > 0:
                late.append((number, started, ended))
            say(
                event="answer", number=number, row=row, label=answer.class_index,
                route=answer.route, stage=answer.stage, cost=answer.cost, reason=answer.reason,
                version=device.bundle.manifest.version, late_ms=late_ms,
            )  # fmt: skip
        timer.close()  # after the join all delays are recorded
        say(
            event="done",
            control_ms={n: 1e3 * timer.worst(since, until) for n, since, until in late},
            counters=device.counters,
            version=device.bundle.manifest.version,
            update=None if updater is None else updater.counters,
        )


if __name__ == "__main__":
    main()
