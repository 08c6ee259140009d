"""Figures of one policy's run: means with intervals, energy, costs and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.energy import HEADER_BYTES, Bill, DeviceEnergy, Prices, Usage, count_packets
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

#: Number of equal bins of the timeline; in a run of a day each one is half an hour.
_N_BINS: Final = 48
#: Number of additional bin edges from the beginning to the end of an outage. Without them, the
#: timeline would not show an outage that is shorter than a bin.
_N_EDGES_PER_OUTAGE: Final = 5
#: Quantiles of the latency by their keys in the report: the median, and usual service levels.
_PROBABILITY_BY_KEY: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Smallest latency in the histogram, which replaces shorter ones, because log10(0) is infinite.
_MIN_HISTOGRAM_MS: Final = 1e-6


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyFigures:
    """Figures of one policy's run.

    `energy` is the energy use of a device, `prices` are the prices of a bill, and `feature_names`
    are the names in the bundle. Columns have one entry per answer of the run, in the same order.
    Sums over instances and the counters of devices are multiplied by ``run.scale``, the number of
    devices of the fleet per simulated device. Means, shares and the counters of workers already
    hold for the whole fleet.
    """

    run: FleetRun
    table: RowTable
    scenario: Scenario
    energy: DeviceEnergy
    prices: Prices | None
    feature_names: Sequence[str]

    def make_result(self, policy_key: str, policy_name: str, engine: EngineName) -> PolicyResult:
        """Make the report's record of the run; InputError if no instance arrived.

        The report identifies the policy by `policy_key` and prints `policy_name`.
        """
        run = self.run
        answers = run.answers
        if not len(answers):
            raise InputError("no instance arrived: simulate more devices or a longer time")
        active_joules = float(
            (answers.radio_joules + self._feature_joules + self._stage_joules).sum()
        )
        radio = self.scenario.link_profile.radio
        active_joules_per_day = active_joules / run.n_devices / (run.seconds / DAY)
        idle_joules_per_day = (radio.idle_w + self.energy.idle_w) * DAY
        return PolicyResult(
            key=policy_key,
            name=policy_name,
            engine=engine,
            sampling=run.sampling,
            scale=run.scale,
            instances=round((len(answers) + run.n_lost) * run.scale),
            **self._estimate_shares(),
            **self._estimate_costs(),
            latency_ms=self._estimate_latencies(),
            bytes=self._compute_byte_use(),
            joules=self._compute_joule_use(),
            joules_per_device_day=active_joules_per_day + idle_joules_per_day,
            battery_days=self.energy.battery_days(active_joules_per_day, radio),
            answers=self._count_answers(),
            money=self._compute_monthly_bill(
                active_joules + run.n_devices * idle_joules_per_day * run.seconds / DAY
            ),
            utilisation=run.worker_counts.get("utilisation"),
            workers={name: float(count) for name, count in run.worker_counts.items()},
            histogram=self._count_by_latency(),
            breakdown_ms=self._compute_latency_parts(),
            reasons=self._count_reasons(),
            timeline=self._make_timeline(),
            classes=self._make_class_results(),
            audit=self._compute_audit_use(),
        )

    # -- columns ----------------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> Batches:
        return Batches.deal(self.run.answers, self.run.seconds, len(self.table))

    @cached_property
    def _is_answered(self) -> BoolArray:
        """Whether an instance has an answer; the route of a lost one is -1."""
        return np.asarray(self.run.answers.route >= 0, np.bool_)

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
    def _feature_joules(self) -> FloatArray:
        joules_by_set = self.energy.feature_joules(self.table.feature_sets, self.feature_names)
        return np.asarray(joules_by_set[self._find_acquired_sets()], np.float64)

    def _find_acquired_sets(self) -> IntArray:
        """Find the index of the set of features acquired for each instance."""
        answers = self.run.answers
        table = self.table
        set_index = np.where(
            answers.has_request_features | answers.is_audited,
            table.request_set_index[answers.row],
            table.local_set_index[answers.row],
        )
        if self.run.is_cloud_first:
            # The last set contains only the features of a request, because no stage has run.
            set_index = np.where(answers.route == CLOUD, len(table.feature_sets) - 1, set_index)
        return set_index

    @cached_property
    def _stage_joules(self) -> FloatArray:
        answers = self.run.answers
        table = self.table
        # `stage_joules` has the energy of the first 0, 1, ... stages, and `last_stage` is -1 for 0.
        joules_by_row = self.energy.stage_joules(table.n_stages)[table.last_stage + 1]
        # A device that offloads first runs no stage for an answer of the cloud.
        has_run_stages = ~((answers.route == CLOUD) & self.run.is_cloud_first)
        return np.asarray(joules_by_row[answers.row] * has_run_stages, np.float64)

    # -- figures ----------------------------------------------------------------------------------

    def _estimate_shares(self) -> dict[str, Any]:
        batches = self._batches
        has_label = self._truth != NO_LABEL
        # Instances of the same row depend on each other. The effective sample size (Kish 1965) of
        # rows with n_r instances is sum(n_r)^2 / sum(n_r^2).
        n_instances_by_row = np.bincount(self.run.answers.row).astype(np.float64)
        n_independent = float(n_instances_by_row.sum() ** 2 / (n_instances_by_row**2).sum())
        shares: dict[str, Any] = {}
        for name, is_correct in (
            ("accuracy", self._is_correct),
            ("edge_accuracy", self._is_edge_correct),
        ):
            estimate = batches.mean(is_correct, has_label, upper_limit=1.0)
            shares[name] = (
                None if estimate is None else widen_share_interval(estimate, n_independent)
            )
        offload_rate = batches.mean(self.run.answers.is_requested, upper_limit=1.0)
        assert offload_rate is not None  # there are instances, see `make_result`
        # A policy that offloads all instances or none has an exact rate, without a wider interval.
        is_fixed = self.run.is_cloud_first or offload_rate.value == 0.0
        shares["offload_rate"] = (
            offload_rate if is_fixed else widen_share_interval(offload_rate, n_independent)
        )
        return shares

    def _estimate_costs(self) -> dict[str, Any]:
        answers = self.run.answers
        return {
            name: self._batches.mean(getattr(answers, name)) for name in ("cost", "feature_cost")
        }

    def _estimate_latencies(self) -> dict[str, Estimate]:
        answers = self.run.answers
        estimate_by_key = {}
        for prefix, is_selected in (
            ("", self._is_answered),
            ("offloaded_", self._is_answered & answers.is_offloaded),
        ):
            if is_selected.any():
                for key, probability in _PROBABILITY_BY_KEY.items():
                    estimate = self._batches.quantile(answers.latency_ms, probability, is_selected)
                    estimate_by_key[prefix + key] = estimate
        return estimate_by_key

    def _compute_byte_use(self) -> ByteUse:
        answers = self.run.answers
        bytes_up = self._batches.mean(answers.bytes_up)
        bytes_down = self._batches.mean(answers.bytes_down)
        assert bytes_up is not None  # there are instances, see `make_result`
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

    def _compute_joule_use(self) -> JouleUse:
        return JouleUse(
            radio=float(self.run.answers.radio_joules.mean(dtype=np.float64)),
            features=float(self._feature_joules.mean()),
            stages=float(self._stage_joules.mean()),
        )

    def _count_answers(self) -> AnswerCounts:
        run = self.run
        counts = self._count_routes()
        counts["lost"] = run.n_lost + int((~self._is_answered).sum())
        counts["late"] = int(run.device_counts.get("late", 0))
        counts["retries"] = int(run.device_counts.get("retries", 0))
        return AnswerCounts(
            **{name: round(n_instances * run.scale) for name, n_instances in counts.items()},
            # The counters of workers are already those of the whole fleet.
            audits=round(run.worker_counts.get("audits", 0.0)),
            audits_disagreed=round(run.worker_counts.get("audits_disagreed", 0.0)),
        )

    def _count_routes(self, instances: slice = slice(None)) -> dict[str, int]:
        """Count the answers to `instances` by the name of the route."""
        is_answered = self._is_answered[instances]
        counts = np.bincount(
            self.run.answers.route[instances][is_answered], minlength=len(ROUTES)
        ).tolist()
        return dict(zip(ROUTES, counts, strict=True))

    def _compute_monthly_bill(self, joules: float) -> Bill | None:
        """Compute the monthly bill; `joules` is the energy that the devices used in the run.

        The headers of packets are added to the bytes of MQTT, because the network operator charges
        for IP traffic.
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
        n_instances_with_request = max(int((answers.payload_bytes_up > 0).sum()), 1)
        mean_bytes_up = float(answers.bytes_up.sum()) / n_instances_with_request
        mean_bytes_down = float(answers.bytes_down.sum()) / n_instances_with_request
        # Estimate the packets of a request and its response from their mean sizes. The receiver
        # confirms each of the two messages by a PUBACK in a separate packet.
        n_packets_per_request = count_packets(mean_bytes_up) + count_packets(mean_bytes_down) + 2
        header_bytes = HEADER_BYTES * n_requests * n_packets_per_request
        uses_cloud = answers.is_requested.any() or answers.is_audited.any()
        usage = Usage(
            seconds=run.seconds,
            # Devices and workers are those of the whole fleet, so they are not scaled.
            n_devices=self.scenario.devices,
            n_workers=self.scenario.workers if uses_cloud else 0,
            n_bytes=scale
            * (float(answers.bytes_up.sum()) + float(answers.bytes_down.sum()) + header_bytes),
            joules=scale * joules,
            feature_units=scale * (float(answers.feature_cost.sum()) + run.audit_cost),
            n_requests=scale * n_requests,
        )
        return self.prices.monthly_bill(usage)

    def _count_by_latency(self) -> LatencyHistogram:
        """Count instances by latency, in ten bins per decade.

        Bin k contains latencies from 10^(k / 10) ms up to the start of bin k + 1. The histogram
        begins with the lowest bin that has an instance, and has no bins if all instances are lost.
        """
        answers = self.run.answers
        if not self._is_answered.any():
            return LatencyHistogram()
        latency_ms = np.maximum(answers.latency_ms[self._is_answered], _MIN_HISTOGRAM_MS)
        bin_number = np.floor(10 * np.log10(latency_ms))
        lowest_bin = int(bin_number.min())
        bin_index = (bin_number - lowest_bin).astype(np.int64)
        n_bins = int(bin_index.max()) + 1
        offloaded_bin_index = bin_index[answers.is_offloaded[self._is_answered]]
        scale = self.run.scale
        return LatencyHistogram(
            edges_ms=tuple(
                10.0 ** ((lowest_bin + position) / 10) for position in range(n_bins + 1)
            ),
            all=tuple((scale * np.bincount(bin_index, minlength=n_bins)).tolist()),
            offloaded=tuple((scale * np.bincount(offloaded_bin_index, minlength=n_bins)).tolist()),
        )

    def _compute_latency_parts(self) -> dict[str, float]:
        """Compute the mean ms per instance of each part of the latency.

        The rest of the latency is spent neither in the stages nor in the worker. It belongs to the
        device if the edge answers, and to the network if the cloud answers. For a fallback or an
        error it belongs to the wait for a response.
        """
        answers = self.run.answers
        remainder_ms = answers.latency_ms - answers.device_ms - answers.cloud_ms
        is_waiting = (answers.route == FALLBACK) | (answers.route == ERROR)
        # Sum in float64, because the columns of the parts are float32.
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
        reasons = self.run.answers.reason[self._is_answered]
        counts = np.bincount(reasons, minlength=len(REASONS))
        return {
            name: float(n_answers * self.run.scale)
            for name, n_answers in zip(REASONS, counts, strict=True)
            if n_answers
        }

    def _make_timeline(self) -> tuple[TimelineBin, ...]:
        """Make bins of equal length, split further by the edges of outages."""
        edges = set(np.linspace(0.0, self.run.seconds, _N_BINS + 1).tolist())
        for outage in self.scenario.outages.spans_within_run():
            edges.update(np.linspace(outage.begin, outage.end, _N_EDGES_PER_OUTAGE).tolist())
        times = sorted(edges)
        # The answers are sorted by time of arrival, so the answers of a bin are a slice.
        positions = np.searchsorted(self.run.answers.time, times).tolist()
        positions[-1] = len(self.run.answers)  # the last bin includes an arrival at its end
        return tuple(
            self._make_timeline_bin(begin, end, slice(*position_pair))
            for (begin, end), position_pair in zip(
                pairwise(times), pairwise(positions), strict=True
            )
        )

    def _make_timeline_bin(self, begin: float, end: float, instances: slice) -> TimelineBin:
        answers = self.run.answers
        scale = self.run.scale
        n_labelled = int((self._truth[instances] != NO_LABEL).sum())
        is_offloaded = answers.is_offloaded[instances] & self._is_answered[instances]
        offloaded_ms = answers.latency_ms[instances][is_offloaded]
        return TimelineBin(
            begin=begin,
            end=end,
            instances=(instances.stop - instances.start) * scale,
            **{
                route: n_answers * scale
                for route, n_answers in self._count_routes(instances).items()
            },
            accuracy=_compute_ratio(self._is_correct[instances].sum(), n_labelled),
            edge_accuracy=_compute_ratio(self._is_edge_correct[instances].sum(), n_labelled),
            p95_ms=float(np.quantile(offloaded_ms, 0.95)) if len(offloaded_ms) else None,
        )

    def _make_class_results(self) -> tuple[ClassResult, ...]:
        answers = self.run.answers
        n_classes = len(self.table.classes)
        # Rows without a label, or with a label that the bundle does not have, belong to no class.
        has_class = self._truth >= 0
        truth = self._truth[has_class]

        def count_by_class(is_counted: BoolArray) -> FloatArray:
            counts = np.bincount(truth, is_counted[has_class], minlength=n_classes)
            return counts.astype(np.float64)

        n_instances = np.bincount(truth, minlength=n_classes)
        n_correct = count_by_class(self._is_correct)
        n_requested = count_by_class(answers.is_requested)
        n_edge_correct = count_by_class(self._is_edge_correct)
        # An answer to a row with a label that the bundle does not have is a wrong answer.
        is_judged = (self._truth != NO_LABEL) & (answers.label >= 0)
        n_answered = np.bincount(answers.label[is_judged], minlength=n_classes)
        return tuple(
            ClassResult(
                label=label,
                instances=float(n_instances[class_index] * self.run.scale),
                offload_rate=_compute_ratio(n_requested[class_index], n_instances[class_index]),
                accuracy=_compute_ratio(n_correct[class_index], n_instances[class_index]),
                edge_accuracy=_compute_ratio(n_edge_correct[class_index], n_instances[class_index]),
                precision=_compute_ratio(n_correct[class_index], n_answered[class_index]),
            )
            for class_index, label in enumerate(self.table.classes)
        )

    def _compute_audit_use(self) -> AuditUse | None:
        run = self.run
        if (
            self.scenario.audit is None
            or self.table.max_disagreement is None
            or not run.answers.is_audited.any()
        ):
            return None
        answers = run.answers
        n_instances = len(answers)
        # Divide by all instances, because an offloaded one counts as agreement.
        n_observed = run.worker_counts.get("audit_instances", 0.0)
        # Add in int64, because the sum of two int32 columns might overflow.
        audit_bytes = (answers.bytes_up.astype(np.int64) + answers.bytes_down)[answers.is_audited]
        return AuditUse(
            compared=round(run.worker_counts.get("audits", 0.0)),
            agreement=1.0 - run.worker_counts["audit_weighted"] / n_observed
            if n_observed
            else None,
            promised=1.0 - self.table.max_disagreement,
            bytes=float(audit_bytes.sum() / n_instances),
            alarms=len(run.instances_at_alarms),
            alarm_instances=min(run.instances_at_alarms) if run.instances_at_alarms else None,
        )


def _compute_ratio(numerator: Any, denominator: Any) -> float | None:
    return float(numerator / denominator) if denominator else None
