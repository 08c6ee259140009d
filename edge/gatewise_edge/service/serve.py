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
from typing import Any, Final, NamedTuple

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer, Observer
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.instance_source import Instance, InstanceSource
from gatewise_edge.service.outputs import AnswerLog
from gatewise_edge.service.watchdog import Heartbeat
from gatewise_edge.stop_request import StopInterrupt, StopRequest
from gatewise_signals.filters import MajorityFilter

_LOG = logging.getLogger(__name__)

#: Largest number of different unexpected errors that are logged, because each takes some 20 lines.
_MAX_LOGGED_FAILURES: Final = 100

#: A function that writes a JSON document as one line.
LineWriter = Callable[[dict[str, Any]], None]


class _DueInstance(NamedTuple):
    """An instance to answer now, with the number of its row and further fields of its line."""

    row_number: int
    instance: Instance
    fields: Mapping[str, Any]


class AnswerWriter:
    """A writer of one JSON line per instance. Thread-safe.

    Parameters
    ----------
    outputs : sequence of LineWriter
        Outputs of every line.
    log : AnswerLog, optional
        Log that gets each line before the outputs. Its rows are not answered again.
    label_filter : MajorityFilter, optional
        Filter of the labels of successive windows, for the field ``smoothed``. The answers must
        then be in the order of the instances.

    Attributes
    ----------
    is_reader_gone : bool
        Whether the reader of standard output has ended.
    n_changed_labels : int
        Number of answers for which the filter gave another label.
    """

    def __init__(
        self,
        outputs: Sequence[LineWriter],
        *,
        log: AnswerLog | None = None,
        label_filter: MajorityFilter | None = None,
    ) -> None:
        self._outputs = outputs
        self._log = log
        self._label_filter = label_filter
        self._lock = threading.Lock()
        self.is_reader_gone = False
        self.n_changed_labels = 0

    @property
    def answered_rows(self) -> Set[int]:
        """Numbers of the rows in the log."""
        return frozenset() if self._log is None else self._log.answered_rows

    def write(
        self, row_number: int, outcome: Answer | Exception, fields: Mapping[str, Any]
    ) -> None:
        """Write the line of an instance's `outcome`, with further `fields` of the instance."""
        with self._lock:
            smoothed_field = self._smooth(outcome, fields)
            document = {"row": row_number, **fields, **_outcome_fields(outcome, smoothed_field)}
            try:
                if self._log is not None:
                    self._log.write(document)
                for write_line in self._outputs:
                    write_line(document)
            except BrokenPipeError:
                # Redirect the output, so that Python's flush at exit succeeds.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                self.is_reader_gone = True

    def _smooth(self, outcome: Answer | Exception, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Make the field ``smoothed`` with the filter; it is absent without a filter or answer."""
        if self._label_filter is None:
            return {}
        if "gap" in fields:  # samples were lost before this window
            self._label_filter.reset()
        if not isinstance(outcome, Answer):
            return {}
        smoothed_label = self._label_filter.push(outcome.label)
        self.n_changed_labels += smoothed_label != outcome.label
        return {"smoothed": smoothed_label}


def run_loop(
    classify: Callable[[Any], Answer],
    instances: InstanceSource,
    *,
    stop_request: StopRequest,
    heartbeat: Heartbeat,
    observers: Sequence[Observer],
    writer: AnswerWriter,
    limit: int | None = None,
    interval_s: float = 0.0,
    parallel: int = 1,
) -> None:
    """Answer instances, and pass each answer or error to the `observers` and the `writer`.

    `classify` is the device's ``answer``. The loop ends after `limit` instances, when the reader of
    the output has ended, or after a request to stop, once it has answered the instances that were
    read before. Each instance begins at least `interval_s` seconds after the previous one. With
    `parallel` above 1 that many threads answer instances, and the lines are in the order of the
    answers. If an observer or the writer raises an exception, the loop ends once it has answered
    the instances that have begun.
    """
    logged_failures: set[str] = set()

    def answer_one(due_instance: _DueInstance) -> None:
        """Answer an instance, and pass the outcome to observers and writer."""
        row_number = due_instance.row_number
        heartbeat.begin(row_number)
        try:
            outcome = _answer_or_error(classify, due_instance.instance, logged_failures)
            if isinstance(outcome, Answer):
                heartbeat.note_answer()
            elif not isinstance(outcome, InputError):  # a restart cannot help an invalid instance
                heartbeat.note_failure()
            for observe in observers:
                observe(outcome)
            writer.write(row_number, outcome, due_instance.fields)
        finally:
            heartbeat.end(row_number)

    due_instances = _due_instances(instances, stop_request, limit, interval_s, writer.answered_rows)
    # Answer one instance at a time on this thread.
    if parallel == 1:
        for due_instance in due_instances:
            answer_one(due_instance)
            if writer.is_reader_gone:
                return
        return
    # Answer several instances at a time on other threads.
    free_threads = threading.Semaphore(parallel)
    thread_failures: list[BaseException] = []

    def free_thread(task: Future[None]) -> None:
        if (failure := task.exception()) is not None:
            thread_failures.append(failure)
        free_threads.release()

    with ThreadPoolExecutor(parallel, thread_name_prefix="gatewise-answer") as pool:
        for due_instance in due_instances:
            free_threads.acquire()
            pool.submit(answer_one, due_instance).add_done_callback(free_thread)
            if thread_failures or writer.is_reader_gone:
                break
    if thread_failures:
        raise thread_failures[0]


def _answer_or_error(
    classify: Callable[[Any], Answer], instance: Instance, logged_failures: set[str]
) -> Answer | Exception:
    """Answer an instance, or return its error; log the traceback of an unexpected error once.

    `logged_failures` are the texts of the logged errors. An error may come with every instance, and
    each line has its text.
    """
    if isinstance(instance, InputError):
        return instance
    try:
        return classify(instance)
    except (SensorError, InputError) as error:
        return error
    except Exception as error:
        # The device continues with the next instance; a release on trial counts the error.
        text = f"{type(error).__name__}: {error}"
        if text not in logged_failures and len(logged_failures) < _MAX_LOGGED_FAILURES:
            logged_failures.add(text)
            _LOG.exception("an instance failed unexpectedly")
        return error


def _outcome_fields(
    outcome: Answer | Exception, smoothed_field: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the JSON fields of an answer or an error."""
    if isinstance(outcome, SensorError | InputError):
        return {"error": str(outcome)}
    if isinstance(outcome, Exception):
        return {"error": f"{type(outcome).__name__}: {outcome}"}
    # Round the figures far below any noise, to keep the lines short.
    return {
        "label": outcome.label,
        **smoothed_field,
        "route": outcome.route,
        "reason": outcome.reason,
        "stage": outcome.stage,
        "cost": round(outcome.cost, 9),
        "latency_ms": round(outcome.latency_ms, 3),
        "acquired": len(outcome.acquired),
        **({"request": outcome.request} if outcome.request else {}),
        "probabilities": [round(probability, 6) for probability in outcome.probabilities.tolist()],
    }


def _due_instances(
    instances: InstanceSource,
    stop_request: StopRequest,
    limit: int | None,
    interval_s: float,
    answered_rows: Set[int],
) -> Iterator[_DueInstance]:
    """Yield each unanswered instance when it is due.

    A request to stop ends the iterator after the instances that were already read. The field ``at``
    is the Unix time at which the instance was read.
    """
    row_number = -1
    n_due = 0
    due_at = time.monotonic()
    # A request to stop may come while an instance is answered, in the pause, or during the read.
    # Instances that were already read then follow without a pause.
    while n_due != limit and not (stop_request.signal_name and not instances.n_buffered):
        row_number += 1
        with suppress(StopInterrupt):
            if interval_s and not stop_request.signal_name and row_number not in answered_rows:
                stop_request.pause(due_at - time.monotonic())
        if stop_request.signal_name and not instances.n_buffered:
            return
        try:
            instance, fields = next(instances)
        except (StopIteration, StopInterrupt):
            return
        if row_number not in answered_rows:
            n_due += 1
            due_at = max(due_at, time.monotonic()) + interval_s
            # State the time, because an outage may delay the publication of the line.
            yield _DueInstance(row_number, instance, {"at": round(time.time(), 3), **fields})


class AnswerTotals:
    """Totals of a run: answers by route, errors, costs and latencies. Thread-safe.

    An answer is late if it took more than `deadline_ms`, for example on a busy machine.
    """

    def __init__(self, deadline_ms: float) -> None:
        self.routes: Counter[str] = Counter()
        self.n_errors = 0
        self.n_late = 0
        self._deadline_ms = deadline_ms
        self._cost = 0.0
        # Only the latest, because a device may run for years; they take a few megabytes.
        self._latencies_ms: deque[float] = deque(maxlen=100_000)
        self._lock = threading.Lock()

    def add(self, outcome: Answer | Exception) -> None:
        """Add an answer or an error."""
        with self._lock:
            if isinstance(outcome, Exception):
                self.n_errors += 1
                return
            self.routes[outcome.route] += 1
            self._cost += outcome.cost
            self._latencies_ms.append(outcome.latency_ms)
            self.n_late += outcome.latency_ms > self._deadline_ms

    def summary(self) -> dict[str, Any]:
        """Get the counts, the mean cost, and quantiles of the latest latencies in ms."""
        with self._lock:
            n_answers = self.routes.total()
            routes = {route: self.routes[route] for route in ("edge", "cloud", "fallback")}
            n_errors = self.n_errors
            n_late = self.n_late
            mean_cost = self._cost / n_answers if n_answers else None
            latencies_ms = sorted(self._latencies_ms)
        # The quantile of a level is the smallest latency that this share of them does not exceed.
        ranks = (math.ceil(level * len(latencies_ms)) - 1 for level in (0.5, 0.95, 0.99))
        quantiles = (latencies_ms[rank] if latencies_ms else None for rank in ranks)
        return {
            "instances": n_answers + n_errors,
            "answers": routes,
            "errors": n_errors,
            "late_answers": n_late,
            "mean_cost": mean_cost,
            "latency_ms": dict(zip(("p50", "p95", "p99"), quantiles, strict=True)),
        }

    def __str__(self) -> str:
        routes = ("edge", "cloud", "fallback")
        counts_text = ", ".join(f"{self.routes[route]} {route}" for route in routes)
        return f"{counts_text}, {self.n_errors} errors"

    def summary_text(self) -> str:
        """Format the :meth:`summary` as a line of text."""
        summary = self.summary()
        counts_text = f"{summary['instances']} instances: {self}"
        if summary["mean_cost"] is None:
            return counts_text
        quantiles = summary["latency_ms"]
        late_text = f"; {self.n_late} answers after the deadline" if self.n_late else ""
        return (
            f"{counts_text}; mean cost {summary['mean_cost']:.4g}; "
            f"latency p50 {quantiles['p50']:.2f} ms, p95 {quantiles['p95']:.2f} ms{late_text}"
        )
