"""Figures of one policy's run, with intervals by batch means.

The run is cut into 2,000 slices of time that are dealt to
:data:`N_BATCHES` batches in turn, so that each batch sees all of the day and of every outage. With
``v`` the figure of the run and ``v_b`` that of a batch, half an interval is
``t * sqrt(sum((v_b - v)**2) / (N (N - 1)))``. Rows are a sample, too: the same is done with the
table's rows dealt to batches, and the longer interval counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.energy import HEADER, Bill, DeviceEnergy, Prices, Usage, packets
from gatewise_sim.fleet.results import (
    CLOUD,
    EDGE,
    ERROR,
    FALLBACK,
    NO_LABEL,
    REASONS,
    ROUTES,
    Answers,
    BoolArray,
    FleetRun,
    FloatArray,
    IntArray,
    RowTable,
)
from gatewise_sim.report.document import (
    AnswerCounts,
    AuditUse,
    ByteUse,
    ClassResult,
    EngineName,
    Figure,
    JouleUse,
    LatencyHistogram,
    PolicyResult,
    StepUse,
    TimelineBin,
)
from gatewise_sim.scenario import Scenario

N_BATCHES: Final = 20
_SLICES: Final = 2000
_T: Final = 2.093  # Student's quantile of 0.975 with 19 degrees of freedom
_Z: Final = 1.960
_BINS: Final = 48  # of the timeline
_CUTS_OF_FAULT: Final = 5
_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of instances by time, and by row if there are enough rows; each shape (n,)."""

    groups: tuple[IntArray, ...]

    @classmethod
    def deal(cls, answers: Answers, seconds: float, n_rows: int) -> Batches:
        """Deal slices of the run, and rows of the table, to batches in turn."""
        slices = (answers.time * (_SLICES / max(seconds, 1e-9))).astype(np.int64)
        groups = [slices % N_BATCHES]
        if n_rows >= N_BATCHES:
            # By chance: rows of a table may stand in an order.
            dealt = np.random.default_rng(0).permutation(n_rows) % N_BATCHES
            groups.append(dealt[answers.row % n_rows])
        return cls(tuple(groups))

    def mean(
        self, values: NDArray[Any], sizes: NDArray[Any] | None = None, highest: float = np.inf
    ) -> Figure | None:
        """Mean of `values` over all instances, or per unit of `sizes`; None without any."""
        size = float(len(values)) if sizes is None else float(sizes.sum())
        if not size:
            return None
        mean = float(values.sum(dtype=np.float64)) / size
        halves = [0.0]
        for group in self.groups:
            sums = np.bincount(group, values, minlength=N_BATCHES)
            weights = np.bincount(group, sizes, minlength=N_BATCHES).astype(np.float64)
            used = weights > 0
            halves.append(_half_width(sums[used] / weights[used], mean, weights[used]))
        half = max(halves)
        low = max(mean - half, min(0.0, mean))
        return Figure(value=mean, low=low, high=max(mean, min(mean + half, highest)))

    def quantile(self, values: FloatArray, share: float, chosen: BoolArray) -> Figure:
        """Quantile of the `chosen` values."""
        own = values[chosen]
        whole = float(np.quantile(own, share))
        halves = [0.0]
        for group in self.groups:
            batches = np.split(
                own[np.argsort(group[chosen], kind="stable")],
                np.cumsum(np.bincount(group[chosen], minlength=N_BATCHES))[:-1],
            )
            parts = np.array([np.quantile(batch, share) for batch in batches if len(batch)])
            weights = np.array([len(batch) for batch in batches if len(batch)], np.float64)
            halves.append(_half_width(parts, whole, weights))
        half = max(halves)
        return Figure(value=whole, low=max(0.0, whole - half), high=whole + half)


def _half_width(parts: FloatArray, whole: float, weights: FloatArray) -> float:
    """Half an interval of a figure, from those of its batches."""
    n = len(parts)
    if n < 2:
        return 0.0
    relative = weights / weights.mean()
    return _T * float(np.sqrt((relative**2 * (parts - whole) ** 2).sum() / (n * (n - 1))))


def share_interval(figure: Figure, n: float) -> Figure:
    """Widen the interval of a share to Wilson's of a share among `n` independent cases (1927).

    >>> share_interval(Figure(value=1.0, low=1.0, high=1.0), 100).low < 0.97
    True
    """
    share = figure.value
    assert figure.low is not None
    assert figure.high is not None
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * (share * (1 - share) / n + _Z**2 / (4 * n**2)) ** 0.5 / (1 + _Z**2 / n)
    low = max(0.0, min(figure.low, share, centre - half))
    high = min(1.0, max(figure.high, share, centre + half))
    return Figure(value=share, low=low, high=high)


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyFigures:
    """Figures of one policy's run.

    `energy` and `prices` say what devices draw and what things cost; `feature_names` are the
    bundle's; `computation` gives the use of steps of blocks from the instances by the set of
    features that they acquired, shape (n_sets,).
    """

    run: FleetRun
    table: RowTable
    scenario: Scenario
    energy: DeviceEnergy
    prices: Prices | None
    feature_names: Sequence[str]
    computation: Callable[[FloatArray], dict[str, StepUse]] | None = None

    def result(self, key: str, name: str, engine: EngineName) -> PolicyResult:
        """Lay the run out for the report; InputError if no instance came."""
        run, answers = self.run, self.run.answers
        if not len(answers):
            raise InputError("no instance came: simulate more devices or a longer time")
        active = float(self._joules_of_instances().sum())
        radio = self.scenario.link_profile.radio
        active_day = active / run.devices / (run.seconds / DAY)
        idle_day = (radio.idle_w + self.energy.idle_w) * DAY
        sets = np.bincount(self._acquired_sets, minlength=len(self.table.sets)).astype(np.float64)
        return PolicyResult(
            key=key,
            name=name,
            engine=engine,
            sampling=run.sampling,
            scaled=run.scale > 1.0,
            instances=round((len(answers) + run.lost) * run.scale),
            **self._shares(),
            **self._costs(),
            latency_ms=self._latencies(),
            bytes=self._bytes(),
            joules=self._joules(),
            joules_per_device_day=active_day + idle_day,
            battery_days=self.energy.battery_days(active_day, radio),
            answers=self._answer_counts(),
            money=self._bill(active + run.devices * idle_day * run.seconds / DAY),
            utilisation=run.workers.get("utilisation"),
            workers={name: float(value) for name, value in run.workers.items()},
            histogram=self._histogram(),
            breakdown_ms=self._breakdown(),
            reasons=self._reasons(),
            timeline=self._timeline(),
            classes=self._classes(),
            computation={} if self.computation is None else self.computation(sets),
            audit=self._audit(),
        )

    # -- columns ----------------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> Batches:
        return Batches.deal(self.run.answers, self.run.seconds, self.table.n_rows)

    @cached_property
    def _truth(self) -> IntArray:
        return self.table.truth[self.run.answers.row]

    @cached_property
    def _right(self) -> BoolArray:
        right = (self._truth != NO_LABEL) & (self.run.answers.label == self._truth)
        return np.asarray(right, np.bool_)

    @cached_property
    def _edge_right(self) -> BoolArray:
        local = self.table.local_label[self.run.answers.row]
        return np.asarray((self._truth != NO_LABEL) & (local == self._truth), np.bool_)

    @cached_property
    def _acquired_sets(self) -> IntArray:
        """Set of features that each instance acquired, with a request or without."""
        answers, table = self.run.answers, self.table
        sets = np.where(
            answers.acquired | answers.audited,
            table.request_set[answers.row],
            table.local_set[answers.row],
        )
        if self.run.request_first:
            sets = np.where(answers.route == CLOUD, len(table.sets) - 1, sets)
        return sets

    @cached_property
    def _feature_joules(self) -> FloatArray:
        joules = self.energy.feature_joules(self.table.sets, self.feature_names)
        return np.asarray(joules[self._acquired_sets], np.float64)

    @cached_property
    def _stage_joules(self) -> FloatArray:
        answers, table = self.run.answers, self.table
        joules = self.energy.stage_joules(table.n_stages)[np.maximum(table.exit + 1, 0)]
        ran = ~((answers.route == CLOUD) & self.run.request_first)
        return np.asarray(joules[answers.row] * ran, np.float64)

    def _joules_of_instances(self) -> FloatArray:
        joules = self.run.answers.joules + self._feature_joules + self._stage_joules
        return np.asarray(joules, np.float64)

    # -- figures ----------------------------------------------------------------------------------

    def _shares(self) -> dict[str, Any]:
        batches, labelled = self._batches, self._truth != NO_LABEL
        # Instances share rows: that many independent ones would be as sure (Kish 1965).
        per_row = np.bincount(self.run.answers.row % self.table.n_rows).astype(np.float64)
        independent = float(per_row.sum() ** 2 / (per_row**2).sum())
        shares: dict[str, Any] = {}
        for name, values in (("accuracy", self._right), ("edge_accuracy", self._edge_right)):
            figure = batches.mean(values, labelled, 1.0)
            shares[name] = None if figure is None else share_interval(figure, independent)
        rate = batches.mean(self.run.answers.requested, None, 1.0)
        assert rate is not None
        fixed = self.run.request_first or rate.value == 0.0
        shares["offload_rate"] = rate if fixed else share_interval(rate, independent)
        return shares

    def _costs(self) -> dict[str, Any]:
        answers = self.run.answers
        return {
            name: self._batches.mean(getattr(answers, name)) for name in ("cost", "feature_cost")
        }

    def _latencies(self) -> dict[str, Figure]:
        answers = self.run.answers
        answered = answers.route >= 0
        latencies = {}
        for prefix, chosen in (("", answered), ("offloaded_", answered & answers.offloaded)):
            if chosen.any():
                for label, share in _QUANTILES.items():
                    figure = self._batches.quantile(answers.latency_ms, share, chosen)
                    latencies[prefix + label] = figure
        return latencies

    def _bytes(self) -> ByteUse:
        answers = self.run.answers
        up = self._batches.mean(answers.up)
        down = self._batches.mean(answers.down)
        assert up is not None
        assert down is not None
        request = float(answers.payload_up.mean())
        response = float(answers.payload_down.mean())
        protocol = up.value + down.value - request - response
        return ByteUse(up=up, down=down, request=request, response=response, protocol=protocol)

    def _joules(self) -> JouleUse:
        return JouleUse(
            radio=float(self.run.answers.joules.mean(dtype=np.float64)),
            features=float(self._feature_joules.mean()),
            stages=float(self._stage_joules.mean()),
        )

    def _answer_counts(self) -> AnswerCounts:
        run = self.run
        by_route = np.bincount(run.answers.route[run.answers.route >= 0], minlength=len(ROUTES))
        counts = {name: int(n) for name, n in zip(ROUTES, by_route, strict=True)}
        counts["lost"] = run.lost + int((run.answers.route < 0).sum())
        counts["late"] = int(run.counts.get("late", 0))
        counts["retries"] = int(run.counts.get("retries", 0))
        counts["audits"] = int(run.workers.get("audits", 0))
        counts["audits_disagreed"] = int(run.workers.get("audits_disagreed", 0))
        return AnswerCounts(**{name: round(n * run.scale) for name, n in counts.items()})

    def _bill(self, joules: float) -> Bill | None:
        """Bill of a month; an operator bills IP: each message, and each PUBACK, is a packet."""
        if self.prices is None:
            return None
        run, answers, scale = self.run, self.run.answers, self.run.scale
        counts = run.counts
        requests = counts.get("sent", 0) + counts.get("retries", 0) - counts.get("unsent", 0)
        n_asked = max(int((answers.payload_up > 0).sum()), 1)
        request = float(answers.up.sum()) / n_asked
        response = float(answers.down.sum()) / n_asked
        headers = HEADER * requests * (packets(request) + packets(response) + 2)
        used = answers.requested.any() or answers.audited.any()
        usage = Usage(
            seconds=run.seconds,
            devices=self.scenario.devices,
            workers=self.scenario.workers if used else 0,
            bytes=scale * (float(answers.up.sum()) + float(answers.down.sum()) + headers),
            joules=scale * joules,
            feature_units=scale * (float(answers.feature_cost.sum()) + run.audit_cost),
            requests=scale * requests,
        )
        return self.prices.month(usage)

    def _histogram(self) -> LatencyHistogram:
        """Ten bins a decade."""
        answers = self.run.answers
        answered = answers.route >= 0
        place = np.floor(10 * np.log10(np.maximum(answers.latency_ms[answered], 1e-6)))
        first = int(place.min())
        bins = (place - first).astype(np.int64)
        n_bins = int(bins.max()) + 1
        offloaded = bins[answers.offloaded[answered]]
        scale = self.run.scale
        return LatencyHistogram(
            edges_ms=tuple(10.0 ** ((first + i) / 10) for i in range(n_bins + 1)),
            all=tuple((scale * np.bincount(bins, minlength=n_bins)).tolist()),
            offloaded=tuple((scale * np.bincount(offloaded, minlength=n_bins)).tolist()),
        )

    def _breakdown(self) -> dict[str, float]:
        answers = self.run.answers
        rest = answers.latency_ms - answers.device_ms - answers.cloud_ms
        cloud = answers.route == CLOUD
        waits = (answers.route == FALLBACK) | (answers.route == ERROR)
        own = answers.route == EDGE
        n = len(answers)
        return {
            "device": float((answers.device_ms.sum(dtype=np.float64) + rest[own].sum()) / n),
            "network": float(rest[cloud].sum() / n),
            "cloud": float(answers.cloud_ms.sum(dtype=np.float64) / n),
            "waiting": float(rest[waits].sum() / n),
        }

    def _reasons(self) -> dict[str, float]:
        answered = self.run.answers.route >= 0
        counts = np.bincount(self.run.answers.reason[answered], minlength=len(REASONS))
        return {
            name: float(n * self.run.scale) for name, n in zip(REASONS, counts, strict=True) if n
        }

    def _timeline(self) -> tuple[TimelineBin, ...]:
        """Bins of equal length, cut where something goes down or comes back."""
        answers, scale = self.run.answers, self.run.scale
        edges = set(np.linspace(0.0, self.run.seconds, _BINS + 1).tolist())
        for _, begin, end, _ in self.scenario.outages.faults():
            edges.update(np.linspace(begin, min(end, self.run.seconds), _CUTS_OF_FAULT).tolist())
        cuts = sorted(edges)
        places = np.searchsorted(answers.time, cuts)
        places[-1] = len(answers)
        bins = []
        for begin, end, first, last in zip(cuts, cuts[1:], places, places[1:], strict=False):
            part = slice(first, last)
            n = int(last - first)
            by_route = np.bincount(answers.route[part].clip(0), minlength=len(ROUTES)) * scale
            labelled = int((self._truth[part] != NO_LABEL).sum())
            own = answers.latency_ms[part][answers.offloaded[part] & (answers.route[part] >= 0)]
            quantiles = np.quantile(own, (0.5, 0.95)).tolist() if len(own) else (None, None)
            bins.append(
                TimelineBin(
                    begin=begin,
                    end=end,
                    instances=n * scale,
                    **{name: float(x) for name, x in zip(ROUTES, by_route, strict=True)},
                    accuracy=_ratio(self._right[part].sum(), labelled),
                    edge_accuracy=_ratio(self._edge_right[part].sum(), labelled),
                    p50_ms=quantiles[0],
                    p95_ms=quantiles[1],
                )
            )
        return tuple(bins)

    def _classes(self) -> tuple[ClassResult, ...]:
        answers, n_classes = self.run.answers, len(self.table.classes)
        known = self._truth >= 0
        truth = self._truth[known]

        def count(values: BoolArray) -> FloatArray:
            return np.bincount(truth, values[known], minlength=n_classes).astype(np.float64)

        n = np.bincount(truth, minlength=n_classes)
        right = count(self._right)
        requested = count(answers.requested)
        edge_right = count(self._edge_right)
        answered = np.bincount(answers.label[known & (answers.label >= 0)], minlength=n_classes)
        return tuple(
            ClassResult(
                label=label,
                instances=float(n[i] * self.run.scale),
                offload_rate=_ratio(requested[i], n[i]),
                accuracy=_ratio(right[i], n[i]),
                edge_accuracy=_ratio(edge_right[i], n[i]),
                precision=_ratio(right[i], answered[i]),
            )
            for i, label in enumerate(self.table.classes)
        )

    def _audit(self) -> AuditUse | None:
        run, share = self.run, self.scenario.audit
        compared = run.workers.get("audits", 0.0)
        if share is None or self.table.promised is None or not run.answers.audited.any():
            return None
        answers, n = run.answers, len(run.answers)
        tested = run.workers.get("audit_instances", 0.0)
        sizes = (answers.up.astype(np.int64) + answers.down)[answers.audited]
        return AuditUse(
            share=share,
            compared=round(compared * run.scale),
            disagreed=round(run.workers.get("audits_disagreed", 0.0) * run.scale),
            agreement=1.0 - run.workers["audit_weighted"] / tested if tested else None,
            promised=1.0 - self.table.promised,
            bytes=float(sizes.sum() / n),
            feature_cost=run.audit_cost / n,
            alarms=len(run.alarms),
            alarm_instances=min(run.alarms) if run.alarms else None,
        )


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
