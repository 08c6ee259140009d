"""Batch sizes: how many instances of a model to run at a time, measured.

A random forest takes as long for an instance in a batch as alone, a support vector machine half as
long in a batch of 16. So each model is timed on its bundle's sample at batches of 1, 2, 4 ... 32,
and the smallest batch is chosen with a time per instance within a tenth of the best. Later runs
correct the times.

While a worker is busy, requests gather by themselves, so waiting for more only spares processor
time on an idle one, and the default is 0. A wait is kept only for models with instances that cost
less than :data:`WORTH_WAITING` of a single run's time in the chosen batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from gatewise_cloud.worker.batcher import ModelKey, Plan

SIZES: Final = (1, 2, 4, 8, 16, 32)
WORTH_WAITING: Final = 0.75
_GOOD_ENOUGH: Final = 1.1
_UNMEASURED: Final = 16
_LEARN_EVERY: Final = 64
_GAIN: Final = 0.1
_MEASURING: Final = 0.4  # s


class Timing:
    """Seconds that one run of a model takes, by its number of instances.

    `seconds`: by some of :data:`SIZES`.
    """

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = dict(seconds)

    @property
    def best(self) -> int:
        """The batch to choose; 16 if fewer than two sizes were measured."""
        if len(self.seconds) < 2:
            return _UNMEASURED
        each = {n: t / n for n, t in self.seconds.items()}
        return min(n for n in each if each[n] <= _GOOD_ENOUGH * min(each.values()))

    def gain(self, batch: int) -> float:
        """How many times less an instance costs in a batch than alone; 1 if that is unknown."""
        size = max((n for n in self.seconds if n <= batch), default=1)
        return self.seconds[1] * size / self.seconds[size] if size > 1 else 1.0

    def expected(self, n: int) -> float:
        """Seconds that a run of n instances takes, at most; infinite beyond what was measured."""
        return min((t for size, t in self.seconds.items() if size >= n), default=float("inf"))

    def learn(self, n: int, seconds: float) -> None:
        """Correct the time of a size by a run that was seen; other sizes teach nothing."""
        if n in self.seconds:
            self.seconds[n] += _GAIN * (seconds - self.seconds[n])


def measure(
    run: Callable[[Any], object],
    rows: np.ndarray[Any, np.dtype[np.float32]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time a model at growing batches: the quickest of a few runs each.

    Shapes: `rows` (n, k).
    """
    until = clock() + _MEASURING
    taken: dict[int, float] = {}
    for n in SIZES:
        X = np.ascontiguousarray(rows[np.arange(n) % len(rows)])
        turns = []
        for _ in range(5):
            if clock() >= until:
                break
            started = clock()
            run(X)
            turns.append(clock() - started)
        if not turns:
            break
        # The least: what others do on the machine only ever adds. The first warms up.
        taken[n] = min(turns[1:] or turns)
    return Timing(taken)


class BatchPlans:
    """The batch plan of each model, measured or fixed; safe across threads.

    `max_batch`: instances in one run at most; "auto": as measured. `wait_ms`: milliseconds that a
    request may wait for company, where that pays.
    """

    def __init__(self, max_batch: int | Literal["auto"] = "auto", *, wait_ms: float = 0.0) -> None:
        self._fixed = None if max_batch == "auto" else max_batch
        self._wait = wait_ms / 1000.0
        self._timings: dict[ModelKey, Timing] = {}
        self._plans: dict[ModelKey, Plan] = {}
        self._runs = 0
        self._lock = threading.Lock()

    @property
    def measures(self) -> bool:
        """Whether a model's times are of use."""
        return self._fixed is None or self._wait > 0

    def add(self, model: ModelKey, timing: Timing) -> None:
        """Add a model with its times."""
        with self._lock:
            self._timings[model] = timing
            self._plans[model] = self._choose(timing)

    def drop(self, model: ModelKey) -> None:
        """Forget a model."""
        with self._lock:
            self._timings.pop(model, None)
            self._plans.pop(model, None)

    def plan(self, model: ModelKey) -> Plan:
        """Give the plan of a model."""
        plan = self._plans.get(model)
        return plan if plan is not None else Plan(self._fixed or _UNMEASURED)

    def expected(self, model: ModelKey, n: int) -> float:
        """Seconds that a run of n instances is expected to take; infinite if that is unknown."""
        timing = self._timings.get(model)
        return float("inf") if timing is None else timing.expected(n)

    def learn(self, model: ModelKey, n: int, seconds: float) -> None:
        """Correct the times by a run; now and then the plan is chosen again."""
        with self._lock:
            timing = self._timings.get(model)
            if timing is None:
                return
            timing.learn(n, seconds)
            self._runs += 1
            if self._runs % _LEARN_EVERY == 0:
                self._plans[model] = self._choose(timing)

    def as_json(self, model: ModelKey) -> dict[str, Any]:
        """The plan and the times of a model, in microseconds, fit for JSON."""
        plan = self.plan(model)
        with self._lock:
            timing = self._timings.get(model)
            times = {} if timing is None else dict(timing.seconds)
        return {
            "max_batch": plan.max_batch,
            "wait_ms": round(1000.0 * plan.wait, 3),
            "run_us": {str(n): round(1e6 * t, 1) for n, t in times.items()},
        }

    def _choose(self, timing: Timing) -> Plan:
        batch = self._fixed or timing.best
        pays = timing.gain(batch) * WORTH_WAITING > 1.0
        return Plan(batch, self._wait if pays else 0.0)
