"""A device: an instance in, exactly one answer out, before its deadline.

The stages run one after the other and buy their features as they come. An instance that no
stage stops for goes to the cloud; if no usable response is there in time, the last stage's
answer is given and marked ``fallback``.

Deciding is event-driven: :meth:`Device.begin` runs the stages and sends what must be sent,
:meth:`Device.advance` says whether the cloud's part is over. :meth:`Device.answer` is the two
with real waiting between; a simulator in virtual time calls them itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_edge._checks import check_positive
from gatewise_edge.answer import Answer, Case, Pending, Plan, Policy, Route
from gatewise_edge.errors import SensorError
from gatewise_edge.link import Link
from gatewise_edge.offload import Outcome
from gatewise_edge.sensors import Meter, Reading, Row, Sensors, Source
from gatewise_edge.stages import StageRunner, self_test
from gatewise_edge.uplink import Uplink
from gatewise_edge.wire import MAX_PAYLOAD
from gatewise_export.bundle import Bundle
from gatewise_training.costs import request_bytes
from gatewise_training.errors import InputError

__all__ = ["Answer", "Device", "Pending", "Policy", "Route"]

#: Seconds before the deadline at which waiting ends, so that the answer itself is in time.
_GUARD: Final = 0.005


class Device:
    """Answers instances with a bundle's stages and, for the hard ones, the cloud.

    Parameters
    ----------
    bundle : Bundle or path
    link : Link, optional
        The way to the cloud; the device opens and closes it. Without one every hard instance
        is a fallback.
    sensors : Sensors, optional
        For :meth:`answer` without a row. The device closes them, too.
    deadline_ms : float, default 500
        Milliseconds from the call within which an answer is given.
    policy : {"system", "edge-only", "cloud-only"}, default "system"
        For measurements: ``edge-only`` never offloads, the last stage always answers;
        ``cloud-only`` buys the cloud model's features and offloads every instance at once.
    outstanding : int, default 32
        Requests out at a time, at most (several threads may ask for answers).
    check : bool, default True
        Run the bundle's self-test first.
    clock : callable, default time.monotonic
        Seconds, steady.

    Raises
    ------
    BundleError
        If the bundle cannot be read or run, or places stages of the chain in force beyond the
        device.
    SelfTestError
        If it computes otherwise here than where it was packed.
    InputError
        If a setting is out of range, or the sensors do not fit the bundle.

    Examples
    --------
    >>> with Device("bundle/") as device:  # doctest: +SKIP
    ...     device.answer([0.1, 2.0, 3.5]).label
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        link: Link | None = None,
        sensors: Sensors | None = None,
        deadline_ms: float = 500.0,
        policy: Policy = "system",
        outstanding: int = 32,
        check: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.deadline_ms = check_positive("deadline_ms", deadline_ms)
        self.policy = policy
        self.bundle.manifest.check_on_device()
        self._runner = StageRunner(self.bundle)
        self._plan = Plan.of(self.bundle.manifest)
        if policy not in get_args(Policy):
            raise InputError(f"policy {policy!r}; choose one of {', '.join(get_args(Policy))}")
        if policy == "cloud-only" and not self._plan.has_cloud:
            raise InputError("policy cloud-only: the bundle has no cloud model")
        if outstanding < 1:
            raise InputError(f"outstanding is {outstanding}; at least 1 request must be allowed")
        if link is not None and request_bytes(len(self._plan.cloud_inputs)) > MAX_PAYLOAD:
            raise InputError(
                f"the cloud model reads {len(self._plan.cloud_inputs)} features, "
                f"more than a message of {MAX_PAYLOAD} bytes can carry"
            )
        if check:
            self_test(self.bundle, self._runner)
        costs = self.bundle.manifest.feature_costs()
        self._meter = Meter(costs)
        self._sensors = sensors
        self._source: Source | None = None
        if sensors is not None:
            asks_cloud = link is not None and policy != "edge-only"
            needed = self._plan.cloud_inputs if asks_cloud else ()
            self._source = sensors.bind(costs, [*self._plan.stage_inputs, *needed])
        self._clock = clock
        self._guard = min(_GUARD, self.deadline_ms / 1e4)
        self._counts: Counter[str] = Counter(dict.fromkeys((*get_args(Route), "errors"), 0))
        self._counting = threading.Lock()
        manifest = self.bundle.manifest
        self._uplink = Uplink(
            link, model=manifest.name, version=manifest.version, limit=outstanding, clock=clock
        )
        self._uplink.open()

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the link and the sensors. May be called twice."""
        self._uplink.close()
        if self._sensors is not None:
            self._sensors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far.

        ``edge``, ``cloud``, ``fallback`` and ``errors`` (SensorError) sum to the instances;
        ``bytes_up`` and ``bytes_down`` are payload bytes; the rest are those of
        :class:`gatewise_edge.offload.OffloadCounts`.
        """
        with self._counting:
            return dict(self._counts) | self._uplink.counters

    # -- answering -------------------------------------------------------------------------

    def answer(self, row: ArrayLike | None = None) -> Answer:
        """Classify one instance.

        Parameters
        ----------
        row : array-like of shape (n_features,), optional
            All values, in the manifest's order; only what is needed is read and paid. Without
            it the sensors are read.

        Raises
        ------
        SensorError
            If a value that the first stage needs cannot be had or is refused: the one case
            with no local answer to fall back on.
        InputError
            If the row does not fit the bundle, or there are neither a row nor sensors.
        """
        step = self.begin(row)
        while isinstance(step, Pending):
            self._uplink.wait(step.item)
            step = self.advance(step)
        return step

    def begin(self, row: ArrayLike | None = None) -> Answer | Pending:
        """Run the stages; send the instance to the cloud if none stops.

        Returns
        -------
        Answer or Pending
            Pending: call :meth:`advance` at its ``wake_at``, or when the link has delivered.
        """
        started = self._clock()
        reading = Reading(self._source_of(row), self._plan.names, self._meter)
        case = Case(reading, started, started + self.deadline_ms / 1000.0 - self._guard)
        if self.policy == "cloud-only":
            return self._offload(case, "cloud-only")
        stopped = self._run_stages(case)
        if stopped:
            return self._local(case, "edge", "stopped")
        if case.error is not None:
            if case.error.why == "missing" and self._plan.cloud_takes_nan and self._may_offload:
                return self._offload(case, "missing")
            return self._fall_back(case, _trouble(case.error))
        if not self._plan.has_cloud:
            return self._local(case, "edge", "last-stage")
        if self.policy == "edge-only":
            return self._local(case, "edge", "edge-only")
        return self._offload(case, "offloaded")

    def advance(self, pending: Pending) -> Answer | Pending:
        """Look after a request that is out: retry it, end it, or leave it.

        Returns
        -------
        Answer or Pending
            `pending` itself while the outcome is open.
        """
        self._uplink.poll(pending.item)
        if pending.item.outcome is None:
            return pending
        return self._conclude(pending.case, pending.item.outcome)

    # -- the stages ------------------------------------------------------------------------

    def _source_of(self, row: ArrayLike | None) -> Source:
        if row is not None:
            return Row(row, len(self._plan.names))
        if self._source is None:
            raise InputError("no instance: give a row, or give the device sensors")
        return self._source

    def _run_stages(self, case: Case) -> bool:
        """Run the stages until one stops, all are done, or a feature cannot be had."""
        runner = self._runner

        def remaining() -> float:
            return case.deadline - self._clock()

        for s, threshold in enumerate(runner.thresholds):
            try:
                case.finished = runner.visit(
                    s,
                    case.reading,
                    allow_missing=self._plan.stages_take_nan,
                    remaining=remaining,
                )
            except SensorError as error:
                case.error = error
                return False
            case.stage = s
            if case.finished.stops(threshold)[0]:
                return True
        return False

    def _local(self, case: Case, route: Route, reason: str, extra_cost: float = 0.0) -> Answer:
        finished = case.finished
        assert finished is not None
        return self._give(
            case,
            index=int(finished.labels[0]),
            probabilities=finished.probabilities[0],
            route=route,
            stage=case.stage,
            extra_cost=extra_cost,
            reason=reason,
        )

    # -- the cloud -------------------------------------------------------------------------

    @property
    def _may_offload(self) -> bool:
        return self._plan.has_cloud and self.policy != "edge-only"

    def _offload(self, case: Case, reason: str) -> Answer | Pending:
        case.reason = reason
        # Known at once to be in vain? Then the cloud model's features are not bought.
        trouble = self._uplink.trouble()
        if trouble is not None:
            return self._fall_back(case, trouble)
        try:
            x = case.reading.acquire(
                self._plan.cloud_inputs,
                allow_missing=self._plan.cloud_takes_nan,
                timeout=case.deadline - self._clock(),
            )
        except SensorError as error:
            case.error = error
            return self._fall_back(case, _trouble(error))
        item = self._uplink.request(x, case.deadline)
        return self._fall_back(case, item) if isinstance(item, str) else Pending(case, item)

    def _conclude(self, case: Case, outcome: Outcome) -> Answer:
        response = outcome.response
        if outcome.kind == "answered" and response is not None:
            if response.probabilities.shape[1] == len(self._plan.classes):
                return self._give(
                    case,
                    index=int(response.labels[0]),
                    probabilities=response.probabilities[0].astype(np.float64),
                    route="cloud",
                    stage=len(self._runner),
                    extra_cost=self._plan.offload_price,
                    reason=case.reason,
                )
            return self._fall_back(case, "cloud:classes", self._plan.offload_price)
        if outcome.kind == "unsent":
            return self._fall_back(case, "unsent")
        reason = "timeout" if response is None else f"cloud:{response.error}"
        return self._fall_back(case, reason, self._plan.request_price)

    def _fall_back(self, case: Case, reason: str, extra_cost: float = 0.0) -> Answer:
        """Answer with the last finished stage; run the stages first if none has run."""
        if case.finished is None and self.policy == "cloud-only":
            self._run_stages(case)
        if case.finished is None:
            with self._counting:
                self._counts["errors"] += 1
            assert case.error is not None
            raise case.error
        return self._local(case, "fallback", reason, extra_cost)

    def _give(
        self,
        case: Case,
        *,
        index: int,
        probabilities: NDArray[np.float64],
        route: Route,
        stage: int,
        extra_cost: float,
        reason: str,
    ) -> Answer:
        acquired, feature_cost = case.reading.acquired, case.reading.meter
        answer = Answer(
            label=self._plan.classes[index],
            class_index=index,
            probabilities=probabilities,
            route=route,
            stage=stage,
            cost=feature_cost + extra_cost,
            feature_cost=feature_cost,
            latency_ms=1000.0 * (self._clock() - case.started),
            reason=reason,
            acquired=tuple(np.flatnonzero(acquired).tolist()),
        )
        with self._counting:
            self._counts[route] += 1
        return answer


def _trouble(error: SensorError) -> str:
    return f"{error.why}:{error.sensor}"
