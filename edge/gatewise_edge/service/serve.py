"""The loop of a running device: an instance in, a JSON line out, until it is stopped."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.instance_source import Instance, InstanceSource
from gatewise_edge.service.outputs import AnswerLog
from gatewise_edge.service.watchdog import Heartbeat
from gatewise_edge.stop_request import Stop, Stopped
from gatewise_signals.filters import parse_filter

_LOG = logging.getLogger(__name__)

Observe = Callable[[Answer | Exception], None]
Write = Callable[[dict[str, Any]], None]


class Smoothing:
    """The filter ``smooth`` over the labels of successive windows.

    Parameters
    ----------
    text : str
        Value of the option; InputError if it describes no filter.
    has_classes : bool
        Whether the bundle answers with classes; InputError if not.

    Attributes
    ----------
    delay : int
        Windows by which a change that lasts shows later.
    changed : int
        Answers whose smoothed label differs from their own.
    """

    def __init__(self, text: str, *, has_classes: bool) -> None:
        if not has_classes:
            raise InputError("smooth is for bundles with classes; this one answers with values")
        self._labels = parse_filter(text)
        self.delay = self._labels.delay
        self.changed = 0

    def restart(self) -> None:
        """Forget the answers so far, because samples were lost before the next instance."""
        self._labels.reset()

    def add(self, answer: Answer) -> Any:
        """Add an answer and return the smoothed label."""
        label = self._labels.push(answer.label)
        self.changed += label != answer.label
        return label


def run_loop(
    classify: Callable[[Any], Answer],
    instances: InstanceSource,
    *,
    stop: Stop,
    beat: Heartbeat,
    observers: Sequence[Observe],
    limit: int | None = None,
    interval: float = 0.0,
    parallel: int = 1,
    smoothing: Smoothing | None = None,
    log: AnswerLog | None = None,
    writers: Sequence[Write],
) -> None:
    """Answer instances and write a JSON line for each, to all `writers`.

    After a stop request, every instance that was taken from its source is still answered.
    `classify` is the device's ``answer``; `observers` get each answer, or the error in its place.
    It ends after `limit` instances; each begins at least `interval` seconds after the one before.
    With `parallel` above 1 each has its own thread and lines come in the order of answers; ``row``
    numbers instances. An error of an observer or writer ends it after those under way are answered.
    `smoothing`, for instances one at a time, adds ``smoothed``. With a `log` each line is kept
    there first, and rows with a line are passed over.
    """
    ended = threading.Event()
    writing = threading.Lock()

    def answer_one(number: int, instance: Instance, fields: Mapping[str, Any]) -> None:
        beat.begin(number)
        try:
            if smoothing is not None and "gap" in fields:
                smoothing.restart()
            outcome = _classify(classify, instance)
            if isinstance(outcome, Answer):
                beat.note_answer()
            elif not isinstance(outcome, InputError):  # no restart mends an instance that is wrong
                beat.note_failure()
            for observe in observers:
                observe(outcome)
            document = {"row": number, **fields, **_described(outcome, smoothing)}
            if log is not None:
                log.write(document)
            with writing:
                for write in writers:
                    write(document)
        except BrokenPipeError:
            # The reader has gone; keep Python from complaining at exit as well.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ended.set()
        finally:
            beat.end(number)

    due_instances = _due(
        instances, stop, limit, interval, frozenset() if log is None else log.answered
    )
    # one after the other, on this thread
    if parallel == 1:
        for item in due_instances:
            answer_one(*item)
            if ended.is_set():
                return
        return
    # several at a time
    free = threading.Semaphore(parallel)
    failures: list[BaseException] = []

    def finish(task: Future[None]) -> None:
        if (failure := task.exception()) is not None:
            failures.append(failure)
            ended.set()
        free.release()

    with ThreadPoolExecutor(parallel, thread_name_prefix="gatewise-answer") as pool:
        for item in due_instances:
            free.acquire()
            pool.submit(answer_one, *item).add_done_callback(finish)
            if ended.is_set():
                break
    if failures:
        raise failures[0]


def _classify(classify: Callable[[Any], Answer], instance: Instance) -> Answer | Exception:
    if isinstance(instance, InputError):
        return instance
    try:
        return classify(instance)
    except (SensorError, InputError) as error:
        return error
    except Exception as error:
        # A device goes on with the next instance; an update on trial learns of it.
        _LOG.exception("an instance failed unexpectedly")
        return error


def _described(outcome: Answer | Exception, smoothing: Smoothing | None) -> dict[str, Any]:
    """Fields of an outcome's line."""
    if isinstance(outcome, SensorError | InputError):
        return {"error": str(outcome)}
    if isinstance(outcome, Exception):
        return {"error": f"{type(outcome).__name__}: {outcome}"}
    return {
        "label": outcome.label,
        **({} if smoothing is None else {"smoothed": smoothing.add(outcome)}),
        "route": outcome.route,
        "reason": outcome.reason,
        "stage": outcome.stage,
        "cost": round(outcome.cost, 9),
        "latency_ms": round(outcome.latency_ms, 3),
        "acquired": len(outcome.acquired),
        **({"request": outcome.request} if outcome.request else {}),
        "probabilities": [round(p, 6) for p in outcome.probabilities.tolist()],
    }


def _due(
    instances: InstanceSource,
    stop: Stop,
    limit: int | None,
    interval: float,
    answered: Set[int],
) -> Iterator[tuple[int, Instance, Mapping[str, Any]]]:
    """Yield instances without an answer, with number and fields, when they are due.

    A stop request ends it, except for instances that were read from their writer already. Fields
    begin with ``at``, the time in Unix seconds at which the instance was taken.
    """
    number = -1
    count = 0
    due_at = time.monotonic()
    while count != limit and not (stop.requested and not instances.held):
        number += 1
        with suppress(Stopped):
            if interval and not stop.requested and number not in answered:
                stop.pause(due_at - time.monotonic())
        if stop.requested and not instances.held:
            return
        try:
            instance, fields = next(instances)
        except (StopIteration, Stopped):
            return
        if number not in answered:
            count += 1
            due_at = max(due_at, time.monotonic()) + interval
            # lines that an outage holds back are published later, with the instance's own time
            yield number, instance, {"at": round(time.time(), 3), **fields}


class AnswerTotals:
    """Sums over a run: answers by route, errors, costs, latencies. Thread-safe."""

    def __init__(self) -> None:
        self.routes: Counter[str] = Counter()
        self.errors = 0
        self._cost = 0.0
        # The latest: a device may run for years.
        self._latencies: deque[float] = deque(maxlen=100_000)
        self._adding = threading.Lock()

    def add(self, end: Answer | Exception) -> None:
        """Add an answer, or the error in its place."""
        with self._adding:
            if isinstance(end, Exception):
                self.errors += 1
                return
            self.routes[end.route] += 1
            self._cost += end.cost
            self._latencies.append(end.latency_ms)

    def summary(self) -> dict[str, Any]:
        """Counts, mean cost and the quantiles of the latest latencies in ms."""
        n = self.routes.total()
        latest = sorted(self._latencies)
        ranks = (math.ceil(q * len(latest)) - 1 for q in (0.5, 0.95, 0.99))
        quantiles = (latest[rank] if latest else None for rank in ranks)
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

    def in_words(self) -> str:
        """Format the :meth:`summary` as a line."""
        summary = self.summary()
        text = f"{summary['instances']} instances: {self}"
        if summary["mean_cost"] is None:
            return text
        latency = summary["latency_ms"]
        return (
            f"{text}; mean cost {summary['mean_cost']:.4g}; "
            f"latency p50 {latency['p50']:.2f} ms, p95 {latency['p95']:.2f} ms"
        )
