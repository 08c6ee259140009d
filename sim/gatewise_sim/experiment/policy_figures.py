"""Figures of one policy's run: means with intervals, energy, costs and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

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
    BoolArray,
    FleetRun,
    FloatArray,
    IntArray,
    RowTable,
)
from gatewise_sim.intervals import Batches, share_interval
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
    TimelineBin,
)
from gatewise_sim.scenario import Scenario

#: Bins of the timeline, and bin edges within an outage.
_N_BINS: Final = 48
_N_EDGES_PER_FAULT: Final = 5
_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyFigures:
    """Figures of one policy's run.

    `energy` is the energy use of a device. `prices` are those of the bill, and `feature_names` the
    bundle's.
    """

    run: FleetRun
    table: RowTable
    scenario: Scenario
    energy: DeviceEnergy
    prices: Prices | None
    feature_names: Sequence[str]

    def result(self, key: str, name: str, engine: EngineName) -> PolicyResult:
        """Make the report's record of the run; InputError if no instance arrived."""
        run = self.run
        answers = run.answers
        if not len(answers):
            raise InputError("no instance arrived: simulate more devices or a longer time")
        active = float(self._joules_of_instances().sum())
        radio = self.scenario.link_profile.radio
        active_day = active / run.devices / (run.seconds / DAY)
        idle_day = (radio.idle_w + self.energy.idle_w) * DAY
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
            audit=self._audit(),
        )

    # -- columns ----------------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> Batches:
        return Batches.deal(self.run.answers, self.run.seconds, len(self.table))

    @cached_property
    def _truth(self) -> IntArray:
        return self.table.truth[self.run.answers.row]

    @cached_property
    def _is_correct(self) -> BoolArray:
        is_correct = (self._truth != NO_LABEL) & (self.run.answers.label == self._truth)
        return np.asarray(is_correct, np.bool_)

    @cached_property
    def _is_edge_correct(self) -> BoolArray:
        local = self.table.local_label[self.run.answers.row]
        return np.asarray((self._truth != NO_LABEL) & (local == self._truth), np.bool_)

    @cached_property
    def _acquired_sets(self) -> IntArray:
        """Index of the set of features acquired for each instance."""
        answers = self.run.answers
        table = self.table
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
        answers = self.run.answers
        table = self.table
        joules = self.energy.stage_joules(table.n_stages)[np.maximum(table.exit + 1, 0)]
        ran = ~((answers.route == CLOUD) & self.run.request_first)
        return np.asarray(joules[answers.row] * ran, np.float64)

    def _joules_of_instances(self) -> FloatArray:
        joules = self.run.answers.joules + self._feature_joules + self._stage_joules
        return np.asarray(joules, np.float64)

    # -- figures ----------------------------------------------------------------------------------

    def _shares(self) -> dict[str, Any]:
        batches = self._batches
        labelled = self._truth != NO_LABEL
        # Instances of the same row depend on each other. The effective sample size (Kish 1965) of
        # rows with n_r instances is sum(n_r)^2 / sum(n_r^2).
        per_row = np.bincount(self.run.answers.row).astype(np.float64)
        n_independent = float(per_row.sum() ** 2 / (per_row**2).sum())
        shares: dict[str, Any] = {}
        for name, values in (
            ("accuracy", self._is_correct),
            ("edge_accuracy", self._is_edge_correct),
        ):
            figure = batches.mean(values, labelled, 1.0)
            shares[name] = None if figure is None else share_interval(figure, n_independent)
        rate = batches.mean(self.run.answers.requested, None, 1.0)
        assert rate is not None
        is_fixed = self.run.request_first or rate.value == 0.0
        shares["offload_rate"] = rate if is_fixed else share_interval(rate, n_independent)
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
        for prefix, mask in (("", answered), ("offloaded_", answered & answers.offloaded)):
            if mask.any():
                for label, share in _QUANTILES.items():
                    figure = self._batches.quantile(answers.latency_ms, share, mask)
                    latencies[prefix + label] = figure
        return latencies

    def _bytes(self) -> ByteUse:
        answers = self.run.answers
        bytes_up = self._batches.mean(answers.up)
        bytes_down = self._batches.mean(answers.down)
        assert bytes_up is not None
        assert bytes_down is not None
        request = float(answers.payload_up.mean())
        response = float(answers.payload_down.mean())
        return ByteUse(
            up=bytes_up,
            down=bytes_down,
            request=request,
            response=response,
            protocol=bytes_up.value + bytes_down.value - request - response,
        )

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
        """Compute the bill of a month.

        The operator bills IP traffic, in which each PUBACK is also a packet.
        """
        if self.prices is None:
            return None
        run = self.run
        answers = run.answers
        scale = run.scale
        counts = run.counts
        requests = counts.get("sent", 0) + counts.get("retries", 0) - counts.get("unsent", 0)
        n_offloads = max(int((answers.payload_up > 0).sum()), 1)
        request = float(answers.up.sum()) / n_offloads
        response = float(answers.down.sum()) / n_offloads
        headers = HEADER * requests * (packets(request) + packets(response) + 2)
        uses_cloud = answers.requested.any() or answers.audited.any()
        usage = Usage(
            seconds=run.seconds,
            devices=self.scenario.devices,
            workers=self.scenario.workers if uses_cloud else 0,
            bytes=scale * (float(answers.up.sum()) + float(answers.down.sum()) + headers),
            joules=scale * joules,
            feature_units=scale * (float(answers.feature_cost.sum()) + run.audit_cost),
            requests=scale * requests,
        )
        return self.prices.month(usage)

    def _histogram(self) -> LatencyHistogram:
        """Count instances by latency, in ten bins per decade."""
        answers = self.run.answers
        answered = answers.route >= 0
        exponents = np.floor(10 * np.log10(np.maximum(answers.latency_ms[answered], 1e-6)))
        lowest = int(exponents.min())
        bins = (exponents - lowest).astype(np.int64)
        n_bins = int(bins.max()) + 1
        offloaded = bins[answers.offloaded[answered]]
        scale = self.run.scale
        return LatencyHistogram(
            edges_ms=tuple(10.0 ** ((lowest + i) / 10) for i in range(n_bins + 1)),
            all=tuple((scale * np.bincount(bins, minlength=n_bins)).tolist()),
            offloaded=tuple((scale * np.bincount(offloaded, minlength=n_bins)).tolist()),
        )

    def _breakdown(self) -> dict[str, float]:
        answers = self.run.answers
        remainder = answers.latency_ms - answers.device_ms - answers.cloud_ms
        waited = (answers.route == FALLBACK) | (answers.route == ERROR)
        on_device = answers.device_ms.sum(dtype=np.float64) + remainder[answers.route == EDGE].sum()
        n_instances = len(answers)
        return {
            "device": float(on_device / n_instances),
            "network": float(remainder[answers.route == CLOUD].sum() / n_instances),
            "cloud": float(answers.cloud_ms.sum(dtype=np.float64) / n_instances),
            "waiting": float(remainder[waited].sum() / n_instances),
        }

    def _reasons(self) -> dict[str, float]:
        answered = self.run.answers.route >= 0
        counts = np.bincount(self.run.answers.reason[answered], minlength=len(REASONS))
        return {
            name: float(n * self.run.scale) for name, n in zip(REASONS, counts, strict=True) if n
        }

    def _timeline(self) -> tuple[TimelineBin, ...]:
        """Bins of equal length, with more edges during outages."""
        edges = set(np.linspace(0.0, self.run.seconds, _N_BINS + 1).tolist())
        for _, begin, end, _ in self.scenario.outages.faults():
            edges.update(
                np.linspace(begin, min(end, self.run.seconds), _N_EDGES_PER_FAULT).tolist()
            )
        times = sorted(edges)
        positions = np.searchsorted(self.run.answers.time, times).tolist()
        positions[-1] = len(self.run.answers)
        return tuple(
            self._timeline_bin(times[i], times[i + 1], slice(positions[i], positions[i + 1]))
            for i in range(len(times) - 1)
        )

    def _timeline_bin(self, begin: float, end: float, instances: slice) -> TimelineBin:
        answers = self.run.answers
        route = answers.route[instances]
        by_route = np.bincount(route.clip(0), minlength=len(ROUTES)) * self.run.scale
        n_labelled = int((self._truth[instances] != NO_LABEL).sum())
        offloaded = answers.offloaded[instances] & (route >= 0)
        latencies = answers.latency_ms[instances][offloaded]
        p50, p95 = np.quantile(latencies, (0.5, 0.95)).tolist() if len(latencies) else (None, None)
        return TimelineBin(
            begin=begin,
            end=end,
            instances=len(route) * self.run.scale,
            **{name: float(n) for name, n in zip(ROUTES, by_route, strict=True)},
            accuracy=_ratio(self._is_correct[instances].sum(), n_labelled),
            edge_accuracy=_ratio(self._is_edge_correct[instances].sum(), n_labelled),
            p50_ms=p50,
            p95_ms=p95,
        )

    def _classes(self) -> tuple[ClassResult, ...]:
        answers = self.run.answers
        n_classes = len(self.table.classes)
        has_class = self._truth >= 0
        truth = self._truth[has_class]

        def count(values: BoolArray) -> FloatArray:
            counts = np.bincount(truth, values[has_class], minlength=n_classes)
            return counts.astype(np.float64)

        n = np.bincount(truth, minlength=n_classes)
        n_correct = count(self._is_correct)
        requested = count(answers.requested)
        n_edge_correct = count(self._is_edge_correct)
        answered = np.bincount(answers.label[has_class & (answers.label >= 0)], minlength=n_classes)
        return tuple(
            ClassResult(
                label=label,
                instances=float(n[i] * self.run.scale),
                offload_rate=_ratio(requested[i], n[i]),
                accuracy=_ratio(n_correct[i], n[i]),
                edge_accuracy=_ratio(n_edge_correct[i], n[i]),
                precision=_ratio(n_correct[i], answered[i]),
            )
            for i, label in enumerate(self.table.classes)
        )

    def _audit(self) -> AuditUse | None:
        run = self.run
        share = self.scenario.audit
        compared = run.workers.get("audits", 0.0)
        if share is None or self.table.promised is None or not run.answers.audited.any():
            return None
        answers = run.answers
        n_instances = len(answers)
        n_audited = run.workers.get("audit_instances", 0.0)
        sizes = (answers.up.astype(np.int64) + answers.down)[answers.audited]
        return AuditUse(
            share=share,
            compared=round(compared * run.scale),
            disagreed=round(run.workers.get("audits_disagreed", 0.0) * run.scale),
            agreement=1.0 - run.workers["audit_weighted"] / n_audited if n_audited else None,
            promised=1.0 - self.table.promised,
            bytes=float(sizes.sum() / n_instances),
            feature_cost=run.audit_cost / n_instances,
            alarms=len(run.alarms),
            alarm_instances=min(run.alarms) if run.alarms else None,
        )


def _ratio(count: Any, total: Any) -> float | None:
    return float(count / total) if total else None
