"""Sums, sketches and counts of one stepped window, in place of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import REASONS, ROUTES, Answers
from gatewise_sim.fleet.energy import DeviceEnergy
from gatewise_sim.fleet.estimate.plan import Window
from gatewise_sim.fleet.estimate.sketch import Sketch
from gatewise_sim.fleet.routes import NO_LABEL, Routes

SUMS: Final = (
    "n",
    "labelled",
    "right",
    "edge_right",
    "requested",
    "audited",
    "audit_bytes",
    *ROUTES,
    "cost",
    "feature_cost",
    "bytes_up",
    "bytes_down",
    "payload_up",
    "payload_down",
    "radio_j",
    "feature_j",
    "stage_j",
    "device_ms",
    "network_ms",
    "cloud_ms",
    "waiting_ms",
)
"""``labelled``: with a known truth; ``requested``: a request was made, whether or not answered;
``audited``: the device's own answer was sent, too, which took ``audit_bytes``, both ways.
"""
CLASS_COUNTS: Final = ("n", "requested", "right", "edge_right", "answered")
"""By true class; ``answered``, the last: by the class that was answered, right or not."""
_EDGE, _CLOUD, _FALLBACK, _ERROR = range(len(ROUTES))
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RowFacts:
    """Routes of the rows, and energy (J) whenever one is answered.

    `set_j` is that of acquiring each of :attr:`.Routes.acquired_sets`, `stage_j` that of running
    each row's stages. `cloud_only`: they run only where the cloud did not answer.
    """

    routes: Routes
    set_j: _Floats
    stage_j: _Floats
    cloud_only: bool

    @classmethod
    def from_routes(
        cls, routes: Routes, energy: DeviceEnergy | None, *, cloud_only: bool
    ) -> RowFacts:
        """Compute them; without an energy there are no joules."""
        energy = energy or DeviceEnergy()
        return cls(
            routes=routes,
            set_j=energy.feature_joules(routes.acquired_sets),
            stage_j=energy.stage_joules(np.maximum(routes.exit + 1, 0)),
            cloud_only=cloud_only,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BinSums:
    """One bin's measured instances: `sums` of shape (len(SUMS),), and latencies.

    `offloaded` are those of instances that were to be offloaded.
    """

    bin: Window
    sums: _Floats
    latencies: Sketch
    offloaded: Sketch


@dataclass(slots=True, eq=False)
class WindowCounts:
    """Result of one window.

    `classes` has shape (n_classes, len(CLASS_COUNTS)), `reasons` (len(REASONS),), `sets` (n_sets,):
    instances by the features that they acquired (:attr:`.Routes.acquired_sets`), `rows` (n_rows,):
    instances of each row of the table, `squares` (len(SUMS),): sums of the squares; `devices` and
    `workers` are their counters in the time measured, `worker_seconds` the time that workers had
    for runs. `instances` and `events` were stepped, warm-up included.
    """

    parts: list[BinSums]
    classes: _Floats
    reasons: _Floats
    sets: _Floats
    rows: _Floats
    squares: _Floats
    devices: dict[str, float] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    worker_seconds: float = 0.0
    instances: int = 0
    events: int = 0


class WindowSums:
    """Adds answers up, bin by bin, of one window.

    The answers' clock begins at `start` on the bins' clock. What comes before the first bin is a
    warm-up, and not counted; what comes after the last one is counted there.
    """

    def __init__(self, bins: Sequence[Window], facts: RowFacts, *, start: float = 0.0) -> None:
        self._bins, self._facts = bins, facts
        self._edges = np.array([b.begin - start for b in bins])
        n_bins, n_rows, n_classes = len(bins), len(facts.routes), len(facts.routes.plan.classes)
        self._sums = np.zeros((n_bins, len(SUMS)))
        self._all: list[list[Sketch]] = [[] for _ in bins]
        self._offloaded: list[list[Sketch]] = [[] for _ in bins]
        self._local = np.zeros((n_bins, n_rows), np.int64)
        self._found = WindowCounts(
            parts=[],
            classes=np.zeros((n_classes, len(CLASS_COUNTS))),
            reasons=np.zeros(len(REASONS)),
            sets=np.zeros(len(facts.set_j)),
            rows=np.zeros(facts.routes.rows),
            squares=np.zeros(len(SUMS)),
        )

    def add_local(self, times: _Floats, rows: NDArray[np.int32]) -> None:
        """Count instances that their devices answer by themselves, sorted by time, shape (n,)."""
        self._found.instances += len(times)
        cuts = [*np.searchsorted(times, self._edges).tolist(), len(times)]
        for number, (first, last) in enumerate(pairwise(cuts)):
            if last > first:
                self._local[number] += np.bincount(rows[first:last], minlength=self._local.shape[1])

    def add(self, answers: Answers, radio_j: _Floats) -> None:
        """Count answers and what each cost its radio, in J, shape (n,)."""
        self._found.instances += len(answers)
        self._add(answers, np.ones(len(answers)), radio_j)

    def result(self, local: Answers) -> WindowCounts:
        """Sum up; `local`: the device's own answer to each row, shape (n_rows,)."""
        for number, counts in enumerate(self._local):
            seen = np.flatnonzero(counts)
            if len(seen):
                some = local.take(seen)
                some.time[:] = self._edges[number]
                self._add(some, counts[seen].astype(np.float64), np.zeros(len(seen)))
        self._local[:] = 0
        self._found.parts = [
            BinSums(bin_, sums, Sketch.merge(every), Sketch.merge(offloaded))
            for bin_, sums, every, offloaded in zip(
                self._bins, self._sums, self._all, self._offloaded, strict=True
            )
        ]
        return self._found

    def _add(self, a: Answers, times: _Floats, radio_j: _Floats) -> None:
        """Count answers, each `times` times."""
        where = np.searchsorted(self._edges, a.time, side="right") - 1
        measured = np.flatnonzero(where >= 0)
        if len(measured) < len(a):
            a, times, radio_j = a.take(measured), times[measured], radio_j[measured]
            where = where[measured]
        if not len(a):
            return
        columns, found = self._columns(a, radio_j), self._found
        for k, name in enumerate(SUMS):
            weights = times * columns[name]
            self._sums[:, k] += np.bincount(where, weights, minlength=len(self._bins))
            found.squares[k] += weights @ columns[name]
        n_rows = len(found.rows)
        found.rows += np.bincount(a.row % n_rows, times, minlength=n_rows)
        self._count_classes(a, times, columns)
        acquired = self._acquired_set(a, a.acquired)
        found.sets += np.bincount(acquired, times, minlength=len(found.sets))
        answered = a.route >= 0
        found.reasons += np.bincount(
            a.reason[answered], weights=times[answered], minlength=len(REASONS)
        )
        offloaded = columns["requested"] | (a.route == _FALLBACK)
        for number in np.unique(where).tolist():
            own = (where == number) & answered
            self._all[number].append(Sketch.from_values(a.latency_ms[own], times[own]))
            own &= offloaded
            if own.any():
                self._offloaded[number].append(Sketch.from_values(a.latency_ms[own], times[own]))

    def _acquired_set(self, a: Answers, requested: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Index of the set of features that each answer acquired, with a request or without."""
        routes = self._facts.routes
        found = np.where(requested, routes.request_set[a.row], routes.local_set[a.row])
        alone = (a.route == _CLOUD) & self._facts.cloud_only
        return np.where(alone, len(self._facts.set_j) - 1, found).astype(np.int64)

    def _columns(self, a: Answers, radio_j: _Floats) -> dict[str, NDArray[Any]]:
        """Contribution of each answer to the sums."""
        facts, routes = self._facts, self._facts.routes
        truth, local = routes.truth[a.row], routes.local_label[a.row]
        labelled = truth != NO_LABEL
        cloud, waits = a.route == _CLOUD, (a.route == _FALLBACK) | (a.route == _ERROR)
        audited = a.audited
        features = self._acquired_set(a, a.acquired | audited)
        stages = facts.stage_j[a.row]
        if facts.cloud_only:
            stages = np.where(cloud, 0.0, stages)
        device, in_cloud = a.device_ms.astype(np.float64), a.cloud_ms.astype(np.float64)
        rest = np.where(a.route >= 0, a.latency_ms - device - in_cloud, 0.0)
        return {
            "n": np.ones(len(a)),
            "labelled": labelled,
            "right": labelled & (a.label == truth),
            "edge_right": labelled & (local == truth),
            "requested": a.requested,
            "audited": audited,
            "audit_bytes": np.where(audited, a.up + a.down, 0),
            **{route: a.route == i for i, route in enumerate(ROUTES)},
            "cost": a.cost,
            "feature_cost": a.feature_cost,
            "bytes_up": a.up,
            "bytes_down": a.down,
            "payload_up": a.payload_up,
            "payload_down": a.payload_down,
            "radio_j": radio_j,
            "feature_j": facts.set_j[features],
            "stage_j": stages,
            "device_ms": device + np.where(cloud | waits, 0.0, rest),
            "network_ms": np.where(cloud, rest, 0.0),
            "cloud_ms": in_cloud,
            "waiting_ms": np.where(waits, rest, 0.0),
        }

    def _count_classes(self, a: Answers, times: _Floats, columns: dict[str, NDArray[Any]]) -> None:
        truth, classes = self._facts.routes.truth[a.row], self._found.classes
        n_classes = len(classes)
        known = truth >= 0  # else unknown, or a class that the bundle lacks
        for k, name in enumerate(CLASS_COUNTS[:-1]):
            weights = (times * columns[name])[known]
            classes[:, k] += np.bincount(truth[known], weights, minlength=n_classes)
        known &= a.label >= 0  # an error answers no class
        classes[:, -1] += np.bincount(a.label[known], times[known], minlength=n_classes)
