"""Program of a device with a control timer.

The first line on standard input is the job as JSON: ``bundle``, ``rows`` (a .npy), ``order`` (rows
to answer, one after another), ``rate`` (instances a second), ``broker`` (or null), ``device``,
``deadline_ms`` and, optionally, ``repeats`` (repeat the rows until a third line comes),
``update`` (``store``, ``trust``, ``url``, ``ca_file``) and ``clock_jumps`` (the time of day jumps
by years in both directions, every half second).

The program prints ``{"event": "ready"}``, waits for a second line, and prints ``{"event": "answer",
...}`` for each answer. At the end it prints ``{"event": "done", ...}`` with the counters and, for
each answer after its deadline, the sum of the delays of the control timer in that time. The timer
is a thread that only sleeps, so its delays show that the machine was busy.
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

#: Sleep of the control timer, short against the tolerance of an answer's lateness.
TICK_SECONDS = 0.01
#: Shorter delays of the control timer occur on an idle machine.
MIN_DELAY_SECONDS = 0.001


class ControlTimer:
    """Thread that wakes every 10 ms and records its delays."""

    def __init__(self) -> None:
        self.delays: list[tuple[float, float]] = []  # (time of waking, delay in s)
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end_event.is_set():
            due_time = time.monotonic() + TICK_SECONDS
            self._end_event.wait(TICK_SECONDS)
            delay_s = time.monotonic() - due_time
            if delay_s > MIN_DELAY_SECONDS:
                self.delays.append((time.monotonic(), delay_s))

    def close(self) -> None:
        self._end_event.set()
        self._thread.join()

    def sum_delays(self, begin: float, end: float) -> float:
        """Sum the delays between two times, in s.

        An answer is late by the sum of the delays of its steps: the wait for the cloud ends late,
        and the thread may wait for the processor again before it has made the answer.
        """
        return sum(
            delay_s
            for wake_time, delay_s in self.delays
            if wake_time >= begin and wake_time - delay_s <= end
        )


def jump_clock() -> None:
    """Let the time of day of this process jump, as after a wrong time from a server."""
    true_time = time.time
    begin = time.monotonic()

    def jumped_time() -> float:
        jump_number = int(2 * (time.monotonic() - begin))  # two per second
        # seconds: ten years ahead and back, a little ahead, and a day back
        return true_time() + (0.0, 3e8, -3e8, 10.0, -86400.0)[jump_number % 5]

    time.time = jumped_time


def print_event(**document: Any) -> None:
    """Print an event as one line of JSON."""
    print(json.dumps(document), flush=True)


def draw_rows(job: dict[str, Any]) -> Iterator[int]:
    """Yield the rows in order, once or repeatedly until another line comes."""
    if not job.get("repeats"):
        yield from job["order"]
        return
    stop_event = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop_event.set()), daemon=True).start()
    yield from itertools.takewhile(lambda _: not stop_event.is_set(), itertools.cycle(job["order"]))


def start_device(
    job: dict[str, Any], link: MqttLink | None, stack: ExitStack
) -> tuple[Device, Updater | None]:
    """Make the device and, if the job has updates, its updater."""
    options = {"link": link, "deadline_ms": job["deadline_ms"]}
    update_job = job.get("update")
    if update_job is None:
        return stack.enter_context(Device(job["bundle"], **options)), None
    store = Store(update_job["store"])
    bundle = Bundle.open(next(iter(store.start()), job["bundle"]), for_device=True)
    settings = UpdateSettings(
        urls=[update_job["url"]],
        trust=update_job["trust"],
        first_bundle=job["bundle"],
        device=job["device"],
        ca_file=update_job["ca_file"],
        min_interval=0.0,  # check at every announcement
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
        device, updater = start_device(job, link, stack)
        if link is not None and job.get("wait_for_link", True):
            link.connect(60.0)  # seconds, for a busy machine
        print_event(event="ready")
        sys.stdin.readline()
        timer = ControlTimer()
        begin = time.monotonic()
        late_answers = []
        for number, row in enumerate(draw_rows(job)):
            pause_s = begin + number / job["rate"] - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            begin_time = time.monotonic()
            try:
                answer = device.answer(rows[row])
            except GatewiseError as error:
                print_event(event="error", number=number, row=row, message=str(error))
                continue
            end_time = time.monotonic()
            late_ms = 1e3 * (end_time - begin_time) - job["deadline_ms"]
            if late_ms > 0:
                late_answers.append((number, begin_time, end_time))
            print_event(
                event="answer", number=number, row=row, label=answer.class_index,
                route=answer.route, stage=answer.stage, cost=answer.cost, reason=answer.reason,
                version=device.bundle.manifest.version, late_ms=late_ms,
            )  # fmt: skip
        timer.close()  # after the join all delays are recorded
        print_event(
            event="done",
            delays_ms={
                number: 1e3 * timer.sum_delays(begin_time, end_time)
                for number, begin_time, end_time in late_answers
            },
            counters=device.counters,
            version=device.bundle.manifest.version,
            update=None if updater is None else updater.counters,
        )


if __name__ == "__main__":
    main()
