"""Figures of one policy's run: means with intervals, energy, costs and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.energy import HEADER_BYTES, Bill, DeviceEnergy, Prices, Usage, n_packets
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
from gatewise_sim.intervals import Batches, widen_share_interval
from gatewise_sim.report.policy_result import (
    AnswerCounts,
    AuditUse,
    ByteUse,
    ClassResult,
    EngineName,
    Estimate,
    JouleUse,
    LatencyHistogram,
    PolicyResult,
    TimelineBin,
)
from gatewise_sim.scenario import Scenario

#: Bins of the timeline, half an hour of a day each, and bin edges within an outage, which may be
#: shorter than a bin.
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

    def make_result(self, key: str, name: str, engine: EngineName) -> PolicyResult:
        """Make the report's record of the run; InputError if no instance arrived."""
        run = self.run
        answers = run.answers
        if not len(answers):
            raise InputError("no instance arrived: simulate more devices or a longer time")
        active_joules = float(self._joules_of_instances().sum())
        radio = self.scenario.link_profile.radio
        active_joules_per_day = active_joules / run.n_devices / (run.seconds / DAY)
        idle_joules_per_day = (radio.idle_w + self.energy.idle_w) * DAY
        return PolicyResult(
            key=key,
            name=name,
            engine=engine,
            sampling=run.sampling,
            scaled=run.scale > 1.0,
            instances=round((len(answers) + run.n_lost) * run.scale),
            **self._share_estimates(),
            **self._cost_estimates(),
            latency_ms=self._latency_estimates(),
            bytes=self._byte_use(),
            joules=self._joule_use(),
            joules_per_device_day=active_joules_per_day + idle_joules_per_day,
            battery_days=self.energy.battery_days(active_joules_per_day, radio),
            answers=self._answer_counts(),
            money=self._monthly_bill(
                active_joules + run.n_devices * idle_joules_per_day * run.seconds / DAY
            ),
            utilisation=run.worker_counts.get("utilisation"),
            workers={name: float(count) for name, count in run.worker_counts.items()},
            histogram=self._latency_histogram(),
            breakdown_ms=self._latency_parts(),
            reasons=self._count_reasons(),
            timeline=self._timeline_bins(),
            classes=self._class_results(),
            audit=self._audit_use(),
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
        local_label = self.table.local_label[self.run.answers.row]
        return np.asarray((self._truth != NO_LABEL) & (local_label == self._truth), np.bool_)

    @cached_property
    def _acquired_set_index(self) -> IntArray:
        """Index of the set of features acquired for each instance."""
        answers = self.run.answers
        table = self.table
        set_index = np.where(
            answers.has_request_features | answers.is_audited,
            table.request_set_index[answers.row],
            table.local_set_index[answers.row],
        )
        if self.run.is_cloud_first:
            set_index = np.where(answers.route == CLOUD, len(table.feature_sets) - 1, set_index)
        return set_index

    @cached_property
    def _feature_joules(self) -> FloatArray:
        joules = self.energy.feature_joules(self.table.feature_sets, self.feature_names)
        return np.asarray(joules[self._acquired_set_index], np.float64)

    @cached_property
    def _stage_joules(self) -> FloatArray:
        answers = self.run.answers
        table = self.table
        joules = self.energy.stage_joules(table.n_stages)[np.maximum(table.last_stage + 1, 0)]
        # A device that offloads first runs no stage for an answer of the cloud.
        has_run_stages = ~((answers.route == CLOUD) & self.run.is_cloud_first)
        return np.asarray(joules[answers.row] * has_run_stages, np.float64)

    def _joules_of_instances(self) -> FloatArray:
        joules = self.run.answers.radio_joules + self._feature_joules + self._stage_joules
        return np.asarray(joules, np.float64)

    # -- figures ----------------------------------------------------------------------------------

    def _share_estimates(self) -> dict[str, Any]:
        batches = self._batches
        has_label = self._truth != NO_LABEL
        # Instances of the same row depend on each other. The effective sample size (Kish 1965) of
        # rows with n_r instances is sum(n_r)^2 / sum(n_r^2).
        instances_per_row = np.bincount(self.run.answers.row).astype(np.float64)
        n_independent = float(instances_per_row.sum() ** 2 / (instances_per_row**2).sum())
        shares: dict[str, Any] = {}
        for name, is_correct in (
            ("accuracy", self._is_correct),
            ("edge_accuracy", self._is_edge_correct),
        ):
            estimate = batches.mean(is_correct, has_label, 1.0)
            shares[name] = (
                None if estimate is None else widen_share_interval(estimate, n_independent)
            )
        offload_rate = batches.mean(self.run.answers.is_requested, None, 1.0)
        assert offload_rate is not None
        # The policy fixes these rates, so that they are no estimates.
        is_fixed = self.run.is_cloud_first or offload_rate.value == 0.0
        shares["offload_rate"] = (
            offload_rate if is_fixed else widen_share_interval(offload_rate, n_independent)
        )
        return shares

    def _cost_estimates(self) -> dict[str, Any]:
        answers = self.run.answers
        return {
            name: self._batches.mean(getattr(answers, name)) for name in ("cost", "feature_cost")
        }

    def _latency_estimates(self) -> dict[str, Estimate]:
        answers = self.run.answers
        is_answered = answers.route >= 0
        latencies = {}
        for prefix, is_selected in (
            ("", is_answered),
            ("offloaded_", is_answered & answers.is_offloaded),
        ):
            if is_selected.any():
                for label, probability in _QUANTILES.items():
                    estimate = self._batches.quantile(answers.latency_ms, probability, is_selected)
                    latencies[prefix + label] = estimate
        return latencies

    def _byte_use(self) -> ByteUse:
        answers = self.run.answers
        bytes_up = self._batches.mean(answers.bytes_up)
        bytes_down = self._batches.mean(answers.bytes_down)
        assert bytes_up is not None
        assert bytes_down is not None
        request_bytes = float(answers.payload_bytes_up.mean())
        response_bytes = float(answers.payload_bytes_down.mean())
        return ByteUse(
            up=bytes_up,
            down=bytes_down,
            request=request_bytes,
            response=response_bytes,
            protocol=bytes_up.value + bytes_down.value - request_bytes - response_bytes,
        )

    def _joule_use(self) -> JouleUse:
        return JouleUse(
            radio=float(self.run.answers.radio_joules.mean(dtype=np.float64)),
            features=float(self._feature_joules.mean()),
            stages=float(self._stage_joules.mean()),
        )

    def _answer_counts(self) -> AnswerCounts:
        run = self.run
        by_route = np.bincount(run.answers.route[run.answers.route >= 0], minlength=len(ROUTES))
        counts = {name: int(n_answers) for name, n_answers in zip(ROUTES, by_route, strict=True)}
        counts["lost"] = run.n_lost + int((run.answers.route < 0).sum())
        counts["late"] = int(run.device_counts.get("late", 0))
        counts["retries"] = int(run.device_counts.get("retries", 0))
        counts["audits"] = int(run.worker_counts.get("audits", 0))
        counts["audits_disagreed"] = int(run.worker_counts.get("audits_disagreed", 0))
        return AnswerCounts(
            **{name: round(n_answers * run.scale) for name, n_answers in counts.items()}
        )

    def _monthly_bill(self, joules: float) -> Bill | None:
        """Compute the bill of a month.

        The operator bills IP traffic, in which each PUBACK is also a packet.
        """
        if self.prices is None:
            return None
        run = self.run
        answers = run.answers
        scale = run.scale
        device_counts = run.device_counts
        n_requests = (
            device_counts.get("sent", 0)
            + device_counts.get("retries", 0)
            - device_counts.get("unsent", 0)
        )
        n_offloads = max(int((answers.payload_bytes_up > 0).sum()), 1)
        request_bytes = float(answers.bytes_up.sum()) / n_offloads
        response_bytes = float(answers.bytes_down.sum()) / n_offloads
        # Each request has the packets of the request and of the response, and two PUBACKs.
        header_bytes = (
            HEADER_BYTES * n_requests * (n_packets(request_bytes) + n_packets(response_bytes) + 2)
        )
        uses_cloud = answers.is_requested.any() or answers.is_audited.any()
        usage = Usage(
            seconds=run.seconds,
            n_devices=self.scenario.devices,
            n_workers=self.scenario.workers if uses_cloud else 0,
            n_bytes=scale
            * (float(answers.bytes_up.sum()) + float(answers.bytes_down.sum()) + header_bytes),
            joules=scale * joules,
            feature_units=scale * (float(answers.feature_cost.sum()) + run.audit_cost),
            n_requests=scale * n_requests,
        )
        return self.prices.monthly_bill(usage)

    def _latency_histogram(self) -> LatencyHistogram:
        """Count instances by latency, in ten bins per decade: bin k begins at 10^(k / 10) ms."""
        answers = self.run.answers
        is_answered = answers.route >= 0
        exponents = np.floor(10 * np.log10(np.maximum(answers.latency_ms[is_answered], 1e-6)))
        lowest_exponent = int(exponents.min())
        bin_index = (exponents - lowest_exponent).astype(np.int64)
        n_bins = int(bin_index.max()) + 1
        offloaded_bin_index = bin_index[answers.is_offloaded[is_answered]]
        scale = self.run.scale
        return LatencyHistogram(
            edges_ms=tuple(10.0 ** ((lowest_exponent + i) / 10) for i in range(n_bins + 1)),
            all=tuple((scale * np.bincount(bin_index, minlength=n_bins)).tolist()),
            offloaded=tuple((scale * np.bincount(offloaded_bin_index, minlength=n_bins)).tolist()),
        )

    def _latency_parts(self) -> dict[str, float]:
        """Mean ms per instance of each part of the latency.

        The remainder after the stages and the worker belongs to the device, the network or the wait
        for a response, by the route of the answer.
        """
        answers = self.run.answers
        remainder_ms = answers.latency_ms - answers.device_ms - answers.cloud_ms
        is_waiting = (answers.route == FALLBACK) | (answers.route == ERROR)
        device_ms = (
            answers.device_ms.sum(dtype=np.float64) + remainder_ms[answers.route == EDGE].sum()
        )
        n_instances = len(answers)
        return {
            "device": float(device_ms / n_instances),
            "network": float(remainder_ms[answers.route == CLOUD].sum() / n_instances),
            "cloud": float(answers.cloud_ms.sum(dtype=np.float64) / n_instances),
            "waiting": float(remainder_ms[is_waiting].sum() / n_instances),
        }

    def _count_reasons(self) -> dict[str, float]:
        is_answered = self.run.answers.route >= 0
        counts = np.bincount(self.run.answers.reason[is_answered], minlength=len(REASONS))
        return {
            name: float(n_answers * self.run.scale)
            for name, n_answers in zip(REASONS, counts, strict=True)
            if n_answers
        }

    def _timeline_bins(self) -> tuple[TimelineBin, ...]:
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
        is_offloaded = answers.is_offloaded[instances] & (route >= 0)
        latencies = answers.latency_ms[instances][is_offloaded]
        p50, p95 = np.quantile(latencies, (0.5, 0.95)).tolist() if len(latencies) else (None, None)
        return TimelineBin(
            begin=begin,
            end=end,
            instances=len(route) * self.run.scale,
            **{name: float(n_answers) for name, n_answers in zip(ROUTES, by_route, strict=True)},
            accuracy=_ratio(self._is_correct[instances].sum(), n_labelled),
            edge_accuracy=_ratio(self._is_edge_correct[instances].sum(), n_labelled),
            p50_ms=p50,
            p95_ms=p95,
        )

    def _class_results(self) -> tuple[ClassResult, ...]:
        answers = self.run.answers
        n_classes = len(self.table.classes)
        has_class = self._truth >= 0
        truth = self._truth[has_class]

        def count_by_class(is_counted: BoolArray) -> FloatArray:
            counts = np.bincount(truth, is_counted[has_class], minlength=n_classes)
            return counts.astype(np.float64)

        n_instances = np.bincount(truth, minlength=n_classes)
        n_correct = count_by_class(self._is_correct)
        n_requested = count_by_class(answers.is_requested)
        n_edge_correct = count_by_class(self._is_edge_correct)
        n_answered = np.bincount(
            answers.label[has_class & (answers.label >= 0)], minlength=n_classes
        )
        return tuple(
            ClassResult(
                label=label,
                instances=float(n_instances[class_index] * self.run.scale),
                offload_rate=_ratio(n_requested[class_index], n_instances[class_index]),
                accuracy=_ratio(n_correct[class_index], n_instances[class_index]),
                edge_accuracy=_ratio(n_edge_correct[class_index], n_instances[class_index]),
                precision=_ratio(n_correct[class_index], n_answered[class_index]),
            )
            for class_index, label in enumerate(self.table.classes)
        )

    def _audit_use(self) -> AuditUse | None:
        run = self.run
        audit_share = self.scenario.audit
        n_compared = run.worker_counts.get("audits", 0.0)
        if (
            audit_share is None
            or self.table.max_disagreement is None
            or not run.answers.is_audited.any()
        ):
            return None
        answers = run.answers
        n_instances = len(answers)
        n_observed = run.worker_counts.get("audit_instances", 0.0)
        audit_bytes = (answers.bytes_up.astype(np.int64) + answers.bytes_down)[answers.is_audited]
        return AuditUse(
            share=audit_share,
            compared=round(n_compared * run.scale),
            disagreed=round(run.worker_counts.get("audits_disagreed", 0.0) * run.scale),
            agreement=1.0 - run.worker_counts["audit_weighted"] / n_observed
            if n_observed
            else None,
            promised=1.0 - self.table.max_disagreement,
            bytes=float(audit_bytes.sum() / n_instances),
            feature_cost=run.audit_cost / n_instances,
            alarms=len(run.instances_at_alarms),
            alarm_instances=min(run.instances_at_alarms) if run.instances_at_alarms else None,
        )


def _ratio(numerator: Any, denominator: Any) -> float | None:
    return float(numerator / denominator) if denominator else None
