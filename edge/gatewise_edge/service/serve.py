"""The loop of a running device, which answers instances and writes a JSON line for each."""

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
    """The filter of the option ``smooth``, which smooths the labels of successive windows.

    Parameters
    ----------
    text : str
        Value of the option.
    has_classes : bool
        Whether the bundle answers with classes.

    Attributes
    ----------
    delay : int
        Number of windows after which a lasting change shows in the smoothed labels.
    changed : int
        Number of answers whose smoothed label differs from their own.

    Raises
    ------
    InputError
        If the text does not describe a filter, or the bundle has no classes.
    """

    def __init__(self, text: str, *, has_classes: bool) -> None:
        if not has_classes:
            raise InputError("smooth needs a bundle with classes; this bundle answers with values")
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
    """Answer instances, and write a JSON line for each to all `writers`.

    `classify` is the device's ``answer``. The `observers` are called with each answer or error. The
    loop ends after `limit` instances, or on a request to stop; instances that were read before the
    request are still answered. Each instance begins at least `interval` seconds after the one
    before. With `parallel` above 1 that many threads answer instances, and the lines are in the
    order of the answers; ``row`` is the number of the instance. If an observer or a writer raises
    an exception, the loop ends once the running instances have been answered. `smoothing` adds the
    field ``smoothed`` and needs `parallel` 1. Each line is first written to the `log`, if there is
    one, and the rows of its lines are skipped.
    """
    stopping = threading.Event()
    write_lock = threading.Lock()

    def answer_one(number: int, instance: Instance, fields: Mapping[str, Any]) -> None:
        beat.begin(number)
        try:
            if smoothing is not None and "gap" in fields:
                smoothing.restart()
            outcome = _classify(classify, instance)
            if isinstance(outcome, Answer):
                beat.note_answer()
            elif not isinstance(outcome, InputError):  # a restart cannot help an invalid instance
                beat.note_failure()
            for observe in observers:
                observe(outcome)
            document = {"row": number, **fields, **_outcome_fields(outcome, smoothing)}
            if log is not None:
                log.write(document)
            with write_lock:
                for write in writers:
                    write(document)
        except BrokenPipeError:
            # The reader has ended. Redirect the output, so that Python's flush at exit succeeds.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            stopping.set()
        finally:
            beat.end(number)

    due_instances = _due_instances(
        instances, stop, limit, interval, frozenset() if log is None else log.answered
    )
    # Answer one instance at a time on this thread.
    if parallel == 1:
        for item in due_instances:
            answer_one(*item)
            if stopping.is_set():
                return
        return
    # Answer several instances at a time on other threads.
    free_threads = threading.Semaphore(parallel)
    failures: list[BaseException] = []

    def finish(task: Future[None]) -> None:
        if (failure := task.exception()) is not None:
            failures.append(failure)
            stopping.set()
        free_threads.release()

    with ThreadPoolExecutor(parallel, thread_name_prefix="gatewise-answer") as pool:
        for item in due_instances:
            free_threads.acquire()
            pool.submit(answer_one, *item).add_done_callback(finish)
            if stopping.is_set():
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
        # The device continues with the next instance; a release on trial counts the error.
        _LOG.exception("an instance failed unexpectedly")
        return error


def _outcome_fields(outcome: Answer | Exception, smoothing: Smoothing | None) -> dict[str, Any]:
    """Get the fields of the line that reports an answer or an error."""
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


def _due_instances(
    instances: InstanceSource,
    stop: Stop,
    limit: int | None,
    interval: float,
    answered: Set[int],
) -> Iterator[tuple[int, Instance, Mapping[str, Any]]]:
    """Yield unanswered instances, with number and fields, when each is due.

    A request to stop ends the iterator after the instances that were already read. The first field
    is ``at``, the time in Unix seconds at which the instance was read.
    """
    number = -1
    count = 0
    due_at = time.monotonic()
    while count != limit and not (stop.requested and not instances.n_buffered):
        number += 1
        with suppress(Stopped):
            if interval and not stop.requested and number not in answered:
                stop.pause(due_at - time.monotonic())
        if stop.requested and not instances.n_buffered:
            return
        try:
            instance, fields = next(instances)
        except (StopIteration, Stopped):
            return
        if number not in answered:
            count += 1
            due_at = max(due_at, time.monotonic()) + interval
            # Lines may be published only after an outage, so they state when the instance was read.
            yield number, instance, {"at": round(time.time(), 3), **fields}


class AnswerTotals:
    """Totals of a run: answers by route, errors, costs and latencies. Thread-safe."""

    def __init__(self) -> None:
        self.routes: Counter[str] = Counter()
        self.errors = 0
        self._cost = 0.0
        # Only the latest, because a device may run for years.
        self._latencies: deque[float] = deque(maxlen=100_000)
        self._lock = threading.Lock()

    def add(self, outcome: Answer | Exception) -> None:
        """Add an answer or an error."""
        with self._lock:
            if isinstance(outcome, Exception):
                self.errors += 1
                return
            self.routes[outcome.route] += 1
            self._cost += outcome.cost
            self._latencies.append(outcome.latency_ms)

    def summary(self) -> dict[str, Any]:
        """Get the counts, the mean cost, and quantiles of the latest latencies in ms."""
        n_answers = self.routes.total()
        latencies = sorted(self._latencies)
        ranks = (math.ceil(q * len(latencies)) - 1 for q in (0.5, 0.95, 0.99))
        quantiles = (latencies[rank] if latencies else None for rank in ranks)
        return {
            "instances": n_answers + self.errors,
            "answers": {route: self.routes[route] for route in ("edge", "cloud", "fallback")},
            "errors": self.errors,
            "mean_cost": self._cost / n_answers if n_answers else None,
            "latency_ms": dict(zip(("p50", "p95", "p99"), quantiles, strict=True)),
        }

    def __str__(self) -> str:
        routes = ", ".join(f"{self.routes[route]} {route}" for route in ("edge", "cloud"))
        return f"{routes}, {self.routes['fallback']} fallback, {self.errors} errors"

    def in_words(self) -> str:
        """Format the :meth:`summary` as a line of text."""
        summary = self.summary()
        text = f"{summary['instances']} instances: {self}"
        if summary["mean_cost"] is None:
            return text
        latency = summary["latency_ms"]
        return (
            f"{text}; mean cost {summary['mean_cost']:.4g}; "
            f"latency p50 {latency['p50']:.2f} ms, p95 {latency['p95']:.2f} ms"
        )
