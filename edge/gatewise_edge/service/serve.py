"""The loop of a running device: an instance in, a JSON line out, until the end is asked for."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from gatewise.console import plain
from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.sources import Instance, Instances
from gatewise_edge.service.watchdog import Heartbeat
from gatewise_edge.stop_request import Stop, Stopped

__all__ = ["Tally", "in_words", "say", "serve"]

Told = Callable[[Answer | Exception], None]


def serve(
    device: Device,
    instances: Instances,
    *,
    stop: Stop,
    beat: Heartbeat,
    told: Told,
    limit: int | None = None,
    interval: float = 0.0,
    parallel: int = 1,
) -> None:
    """Answer instances and print a JSON line for each.

    When the end is asked for, the instance under way and those that were taken in with it are
    answered; none that was taken is left without its line.

    Parameters
    ----------
    device : Device
    instances : Instances
    stop : Stop
    beat : Heartbeat
        Is told when an instance is begun and answered.
    told : callable
        Gets each answer, or the error in its place.
    limit : int, optional
        End after so many instances.
    interval : float, default 0
        Seconds from the beginning of one instance to that of the next, at least.
    parallel : int, default 1
        Instances under way at a time, each on a thread of its own. Lines come as answers do; their
        ``row`` says whose they are.
    """
    ended = threading.Event()
    writing = threading.Lock()

    def answer_one(number: int, instance: Instance) -> None:
        beat.begin(number)
        try:
            document = _answer(device, number, instance, told)
            with writing:
                say(document)
        except BrokenPipeError:
            # Whoever read the answers has gone; keep Python from complaining at exit, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ended.set()
        finally:
            beat.end(number)

    due = enumerate(_due(instances, stop, limit, interval))
    if parallel == 1:
        for number, instance in due:
            answer_one(number, instance)
            if ended.is_set():
                return
        return
    free = threading.Semaphore(parallel)
    with ThreadPoolExecutor(parallel, thread_name_prefix="gatewise-answer") as pool:
        for number, instance in due:
            free.acquire()
            under_way = pool.submit(answer_one, number, instance)
            under_way.add_done_callback(lambda _: free.release())
            if ended.is_set():
                return


def _answer(device: Device, number: int, instance: Instance, told: Told) -> dict[str, Any]:
    try:
        if isinstance(instance, InputError):
            raise instance
        answer = device.answer(instance)
    except (SensorError, InputError) as error:
        told(error)
        return {"row": number, "error": str(error)}
    told(answer)
    return {"row": number, **_as_dict(answer)}


def _due(
    instances: Instances, stop: Stop, limit: int | None, interval: float
) -> Iterator[Instance]:
    """Give instances when they are due; once the end is asked for, only those held."""
    given, due = 0, time.monotonic()
    while given != limit and not (stop.requested and not instances.held):
        with suppress(Stopped):
            if interval and not stop.requested:
                stop.pause(due - time.monotonic())
                due = max(due + interval, time.monotonic())
        if stop.requested and not instances.held:
            return
        try:
            instance = next(instances)
        except (StopIteration, Stopped):
            return
        given += 1
        yield instance


def say(document: dict[str, Any]) -> None:
    """Print a JSON line at once."""
    print(json.dumps(plain(document)), flush=True)


def _as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "label": answer.label,
        "route": answer.route,
        "reason": answer.reason,
        "stage": answer.stage,
        "cost": round(answer.cost, 9),
        "latency_ms": round(answer.latency_ms, 3),
        "acquired": len(answer.acquired),
        "probabilities": [round(p, 6) for p in answer.probabilities.tolist()],
    }


class Tally:
    """What a run adds up to."""

    def __init__(self) -> None:
        self.routes: Counter[str] = Counter()
        self.errors = 0
        self._cost = 0.0
        # The latest: a device may run for years.
        self._latencies: deque[float] = deque(maxlen=100_000)
        self._taking = threading.Lock()

    def take(self, told: Answer | Exception) -> None:
        """Add an answer, or the error in its place."""
        with self._taking:
            if isinstance(told, Exception):
                self.errors += 1
                return
            self.routes[told.route] += 1
            self._cost += told.cost
            self._latencies.append(told.latency_ms)

    def summary(self) -> dict[str, Any]:
        """Counts, mean cost and the quantiles of the latest latencies in ms."""
        n = self.routes.total()
        quantiles = np.quantile(np.array(self._latencies), [0.5, 0.95, 0.99]) if n else [None] * 3
        return {
            "instances": n + self.errors,
            "answers": {route: self.routes[route] for route in ("edge", "cloud", "fallback")},
            "errors": self.errors,
            "mean_cost": self._cost / n if n else None,
            "latency_ms": dict(zip(("p50", "p95", "p99"), quantiles, strict=True)),
        }

    def __str__(self) -> str:
        routes = ", ".join(f"{self.routes[route]} {route}" for route in ("edge", "cloud"))
        return f"{routes}, {self.routes['fallback']} fallback, {self.errors} errors"


def in_words(summary: dict[str, Any]) -> str:
    """Say a :meth:`Tally.summary` in a line."""
    routes = ", ".join(f"{count} {route}" for route, count in summary["answers"].items())
    text = f"{summary['instances']} instances: {routes}, {summary['errors']} errors"
    if summary["mean_cost"] is None:
        return text
    latency = summary["latency_ms"]
    return (
        f"{text}; mean cost {summary['mean_cost']:.4g}; "
        f"latency p50 {latency['p50']:.2f} ms, p95 {latency['p95']:.2f} ms"
    )
