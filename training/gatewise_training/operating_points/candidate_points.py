"""Candidate operating points for a guarantee, in the order in which they are tested.

The points of a frontier are too far apart to come close to a bound. The candidates therefore lie on
a path of settings through one frontier point, the base. At a power ``p``, stage ``s`` passes on

    share[s] ** p

of its rows, where ``share[s]`` is the share at the base. The path starts where the logarithm of
``p`` is minus infinity and no row stops. It passes the base at 0, and ends at infinity, where all
rows stop at the first stage that the base uses. Along a path no row stops later than before. The
offload rate and the cost therefore never rise, whatever the rows, and accuracy nearly always falls.
A sequence of tests in this order rarely fails before it is near the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatewise.decision import ALWAYS_STOP, midpoint_threshold
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.class_guarantee import highest_recalls_text
from gatewise_training.operating_points.cost_cap import keeps_cost
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, certify, check_records
from gatewise_training.operating_points.thresholds import tune_thresholds, with_smoothed_answers

#: Largest logarithm of a power: a share of 0.99 becomes 0.2.
MAX_LOG_POWER = 5.0
#: Largest number of bases from one list of points, those nearest to the bound. Each costs a search
#: along its path.
N_BASES = 12
#: Prices of an offload, as the accuracy that it must gain, for paths on which features are free.
OFFLOAD_PRICES = np.geomspace(3e-3, 3.0, 60)
#: Largest logarithm of a power if classes have bounds.
MAX_CLASS_LOG_POWER = 1.5
#: Number of standard errors on each side of the target where the steps are fine.
FINE_ERRORS = 5.0
#: Number of steps near the target.
N_FINE_STEPS = 160
#: Number of steps between the safest end of the path and the fine steps.
N_COARSE_STEPS = 20


@dataclass(frozen=True, eq=False)
class CalibrationRecords:
    """Records of all candidate cascades on validation and on calibration rows."""

    tuning_records: tuple[CascadeRecord, ...]  # of the validation rows
    certifying_records: tuple[CascadeRecord, ...]  # of the calibration rows
    confidence: float

    def certify_point(
        self,
        frontier: Frontier,
        by_class: ClassBounds | None = None,
        max_cost: float | None = None,
        **bounds: float | None,
    ) -> OperatingPoint:
        """Certify the best point that keeps the bound, the bounds by class and the cap on cost."""
        record = self.certifying_records[0]
        answers = record.exit_answers
        promise = Promise.from_bounds(self.confidence, by_class=by_class, **bounds)
        if answers is not None:
            promise.check_rows(answers.truth, record.splitter)
        points = frontier.all_points if promise.by_class else frontier.points
        records = [tuning_record.within_cost(max_cost) for tuning_record in self.tuning_records]
        candidates = list_candidates(records, points, promise, n_rows=record.n_independent_units)
        if max_cost is not None:
            candidates = [point for point in candidates if keeps_cost(point, max_cost)]
        point = certify(self.certifying_records, candidates, promise)
        if point is None:
            raise _no_certificate(promise, record, max_cost)
        return point


def _no_certificate(promise: Promise, record: CascadeRecord, max_cost: float | None) -> InputError:
    """Make the error for a promise for which no candidate passes its test."""
    cap_text = "" if max_cost is None else f" within max_instance_cost={max_cost:g}"
    cap_advice = "" if max_cost is None else ", or a higher cap"
    class_terms = ""
    recall_text = ""
    if promise.by_class and record.exit_answers is not None:
        class_terms = f" with {promise.by_class.as_text()}"
        truth = record.exit_answers.truth
        recall_text = highest_recalls_text(promise.by_class, truth, record.splitter, promise.level)
    rows_text = f"{len(record.weights)} calibration rows"
    unit_name = "rows"
    if record.splitter.n_groups is not None:
        rows_text += f" in {record.splitter.n_groups} groups"
        unit_name = "groups"
    return InputError(
        f"{promise.kind}={promise.bound:g}{class_terms} cannot be guaranteed at "
        f"{promise.confidence:g} with {rows_text}{cap_text}{recall_text}; give more {unit_name}, a "
        f"looser bound{cap_advice}"
    )


def list_candidates(
    records: CascadeRecord | Sequence[CascadeRecord],
    points: Sequence[OperatingPoint],
    promise: Promise,
    *,
    n_rows: int,
) -> list[OperatingPoint]:
    """List the settings for the tests of :func:`.certify`, the safest first.

    Paths lead through the frontier points nearest to the bound. The target of a path is the boldest
    point that is far enough inside the bound to pass a test on `n_rows` rows. The path with the
    best target on the tuning rows is chosen. The best target is the cheapest one for `max_loss`,
    and the most accurate one for `budget`. For `offload_rate`, paths also lead through settings
    that are tuned as if features cost nothing, and the best target is the cheapest one within a
    standard error of the most accurate one.

    If classes have bounds, no direction along a path is safe for all classes. The candidates are
    then points on paths through the best points, ordered by their distance to the nearest bound.
    """
    ranking = _RiskRanking(check_records(records, promise, accepts_weights=True), promise)
    if n_rows < 1 or not points:
        raise InputError("candidates need at least one operating point and one calibration row")
    if promise.by_class:
        return ranking.list_class_bound_candidates(points, n_rows)
    if all(record.n_stages == 1 and not record.has_cloud for record in ranking.records):
        return ranking.list_single_models(points)
    # Distances in standard deviations of a row: the margin z / sqrt(rows) of a test from the bound,
    # and the half width of the fine steps around it.
    margin_deviations = float(stats.norm.isf(promise.level)) / math.sqrt(n_rows)
    fine_deviations = FINE_ERRORS * math.sqrt(1 / n_rows + 1 / ranking.n_units)
    # the target of each path, and each base that is inside the bound
    targets = []
    for base in ranking.list_bases(points):
        path = SettingsPath.through(ranking.records[base.chain], base)
        targets.append(
            _Target(path.point(ranking.find_farthest_log_power(path, margin_deviations)), path)
        )
        base_point = path.point(0.0)
        # the base may be better than the target of the path
        if ranking.is_within(base_point, margin_deviations):
            targets.append(_Target(base_point, path, is_base=True))
    best_target = ranking.choose_target(targets)
    path = best_target.path
    fine_start, fine_end = (
        ranking.find_farthest_log_power(path, margin_deviations + direction * fine_deviations)
        for direction in (1, -1)
    )
    if best_target.is_base:
        fine_start = ranking.risk_sign * min(ranking.risk_sign * fine_start, 0.0)
        fine_end = 0.0
    # from the safest end in coarse steps, then in fine ones around the target
    log_powers = [
        *np.linspace(-ranking.risk_sign * MAX_LOG_POWER, fine_start, N_COARSE_STEPS),
        *np.linspace(fine_start, fine_end, N_FINE_STEPS),
    ]
    path_points = list({point.thresholds: point for point in map(path.point, log_powers)}.values())
    certain_point = max(ranking.list_certain_points(points), key=ranking.get_rank_key, default=None)
    if certain_point is None:
        return path_points
    certain_rank = ranking.get_rank_key(certain_point, is_base=True)
    return [
        certain_point,
        *(point for point in path_points if ranking.get_rank_key(point) > certain_rank),
    ]


class _Target(NamedTuple):
    """A point of a path that is far enough inside the bound to pass its test."""

    point: OperatingPoint
    path: SettingsPath
    is_base: bool = False  # whether the point is the path's base


@dataclass(frozen=True)
class _RiskRanking:
    """Risks and ranks of settings on the tuning rows, for one promise."""

    records: Sequence[CascadeRecord]
    promise: Promise

    @property
    def n_units(self) -> int:
        """Number of tuning rows, or of their groups."""
        return self.records[0].n_independent_units

    @property
    def risk_sign(self) -> float:
        """Sign of the direction in which log powers take more risk.

        A larger log power stops rows earlier. That loses accuracy, which is the risk of `max_loss`,
        but it lowers the cost and the offload rate, which are the risks of the other promises.
        """
        return 1.0 if self.promise.kind == "max_loss" else -1.0

    def measure_risk(self, point: OperatingPoint) -> float:
        """Get the figure of a point that the promise bounds."""
        if self.promise.kind == "budget":
            return point.cost
        if self.promise.kind == "offload_rate":
            return point.offload_rate
        return self.records[-1].reference_effective_accuracy() - point.effective_accuracy

    def estimate_deviation(self, point: OperatingPoint) -> float:
        """Estimate the standard deviation of the risk of one row or group."""
        if self.promise.kind == "offload_rate":
            return math.sqrt(self.promise.bound * (1 - self.promise.bound))
        if self.promise.kind == "max_loss":
            return point.accuracy_error * math.sqrt(self.n_units)
        record = self.records[point.chain]
        costs = record.costs(record.exits(point.thresholds))
        if record.splitter.n_groups is not None:
            costs = record.splitter.group_means(costs)
        return float(costs.std())

    def get_rank_key(self, point: OperatingPoint, *, is_base: bool = False) -> tuple[float, float]:
        """Get a sort key that is higher for better points.

        For an offload rate, a base ranks two standard errors of accuracy lower.
        """
        if self.promise.kind == "max_loss":
            return -point.cost, point.effective_accuracy
        # use the whole offload rate unless accuracy clearly suffers; a budget need not be used up
        n_errors = 2.0 if is_base and self.promise.kind == "offload_rate" else 0.0
        return point.effective_accuracy - n_errors * point.accuracy_error, -point.cost

    def make_class_distance(self, n_rows: int) -> Callable[[OperatingPoint], float]:
        """Get the function that measures a point's distance to the nearest bound on a class."""
        by_class = self.promise.by_class
        answers = self.records[0].exit_answers
        reference_record = self.records[-1]
        assert by_class
        assert answers is not None
        last_exits = np.full(len(reference_record.weights), reference_record.n_stages)
        reference_answers = (
            answers if reference_record.exit_answers is None else reference_record.exit_answers
        )
        recalls = by_class.as_recalls(
            reference_answers.figures(last_exits, reference_record.weights)["recall"]
        )
        class_rows = [round(count * n_rows / self.n_units) for count in answers.class_rows()]
        return lambda point: recalls.distance(point, class_rows)

    def list_class_bound_candidates(
        self, points: Sequence[OperatingPoint], n_rows: int
    ) -> list[OperatingPoint]:
        """Order settings by distance to the nearest bound, in standard errors of `n_rows` rows."""
        class_distance = self.make_class_distance(n_rows)

        def distance(point: OperatingPoint) -> float:
            if self.promise.is_certain(self.records, point):
                return class_distance(point)
            standard_error = max(self.estimate_deviation(point) / math.sqrt(n_rows), 1e-12)
            distance_to_bound = (self.promise.bound - self.measure_risk(point)) / standard_error
            return min(class_distance(point), distance_to_bound)

        # paths through the best points that keep the bounds, and through the safest ones
        settings = dict.fromkeys((point.chain, point.thresholds) for point in points)
        measured_points = [
            self.records[chain].measure(thresholds, chain) for chain, thresholds in settings
        ]
        inside_points = [point for point in measured_points if distance(point) > 0]
        best_points = sorted(inside_points, key=self.get_rank_key, reverse=True)
        safest_points = sorted(measured_points, key=distance, reverse=True)
        for base in (*best_points[:N_BASES], *safest_points[: N_BASES // 2]):
            path = SettingsPath.through(self.records[base.chain], base)
            log_powers = np.linspace(-MAX_CLASS_LOG_POWER, MAX_CLASS_LOG_POWER, N_COARSE_STEPS * 2)
            measured_points += map(path.point, log_powers)
        # keep a setting only if it is better than all safer ones
        distinct_points = {
            (point.chain, point.thresholds): point for point in measured_points
        }.values()
        candidates: list[OperatingPoint] = []
        for point in sorted(distinct_points, key=distance, reverse=True):
            if not candidates or self.get_rank_key(point) > self.get_rank_key(candidates[-1]):
                candidates.append(point)
        return candidates

    def list_single_models(self, points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
        """Order single models by rising cost, or for a loss from the reference to the cheapest."""
        points_by_cost = sorted(points, key=lambda point: point.cost)
        if self.promise.kind != "max_loss":
            return points_by_cost
        last_chain = len(self.records) - 1
        reference = self.records[last_chain].measure((ALWAYS_STOP,), last_chain)
        cheaper_points = [
            point
            for point in points_by_cost
            if point.cost < reference.cost and point.chain != last_chain
        ]
        return [reference, *reversed(cheaper_points)]

    def list_bases(self, points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
        """List the points nearest to the bound, through which paths lead."""
        nearest_points = self._select_nearest(points)
        if self.promise.kind == "offload_rate":
            # frontier points also save features, which is unnecessary if only offloads are bounded
            for chain, record in enumerate(self.records):
                prices = np.append(np.zeros(record.n_stages), 1.0)
                settings = tune_thresholds(
                    with_smoothed_answers(replace(record, exit_costs=prices)), OFFLOAD_PRICES
                )
                nearest_points += self._select_nearest(
                    [record.measure(thresholds, chain) for thresholds in settings]
                )
        return nearest_points

    def _select_nearest(self, points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
        return sorted(points, key=lambda point: abs(self.measure_risk(point) - self.promise.bound))[
            :N_BASES
        ]

    def choose_target(self, targets: Sequence[_Target]) -> _Target:
        """Choose the target that the promise ranks highest.

        For an offload rate this is the cheapest target within a standard error of the most
        accurate.
        """
        if self.promise.kind == "offload_rate":
            path_targets = [target for target in targets if not target.is_base]
            most_accurate = max((target.point for target in path_targets), key=self.get_rank_key)
            lowest_accuracy = most_accurate.effective_accuracy - most_accurate.accuracy_error
            accurate_targets = [
                target
                for target in path_targets
                if target.point.effective_accuracy >= lowest_accuracy
            ]
            cheapest_target = min(accurate_targets, key=lambda target: target.point.cost)
            targets = [cheapest_target, *(target for target in targets if target.is_base)]
        return max(
            targets, key=lambda target: self.get_rank_key(target.point, is_base=target.is_base)
        )

    def is_within(self, point: OperatingPoint, n_deviations: float) -> bool:
        """Whether a point is inside the bound by `n_deviations` standard deviations of a row."""
        return (
            self.measure_risk(point) + n_deviations * self.estimate_deviation(point)
            <= self.promise.bound
        )

    def find_farthest_log_power(self, path: SettingsPath, n_deviations: float) -> float:
        """Find the boldest log power of a path that is inside the bound by `n_deviations`."""
        return path.find_farthest_log_power(
            lambda point: self.is_within(point, n_deviations), -self.risk_sign * MAX_LOG_POWER
        )

    def list_certain_points(self, points: Sequence[OperatingPoint]) -> Iterator[OperatingPoint]:
        """Yield settings that keep the promise on any rows.

        For each point, its own setting, the edge-only and the cloud-only setting are tried.
        """
        for point in points:
            record = self.records[point.chain]
            used_stages = [
                stage for stage, threshold in enumerate(point.thresholds) if threshold is not None
            ]
            edge_only_setting = list(point.thresholds)
            edge_only_setting[used_stages[-1] if used_stages else -1] = ALWAYS_STOP
            cloud_only_setting: list[float | None] = [None] * record.n_stages
            if not record.has_cloud:
                cloud_only_setting[-1] = ALWAYS_STOP
            for setting in (point.thresholds, tuple(edge_only_setting), tuple(cloud_only_setting)):
                if self.promise.is_certain(
                    self.records, msgspec.structs.replace(point, thresholds=setting)
                ):
                    yield record.measure(setting, point.chain)


@dataclass(frozen=True, eq=False)
class SettingsPath:
    """A path of settings through an operating point, the base."""

    record: CascadeRecord  # the record of the rows that give the shares
    chain: int
    pass_shares: tuple[float, ...]  # share of the rows that each stage passes on at the base
    # per stage: all possible shares, rising, and their thresholds
    possible_thresholds: tuple[tuple[NDArray[np.float64], list[float | None]], ...]

    @classmethod
    def through(cls, record: CascadeRecord, base: OperatingPoint) -> SettingsPath:
        """Make the path through an operating point of the record's cascade."""
        pass_shares = []
        for scores, threshold in zip(record.scores, base.thresholds, strict=True):
            stop_share = 0.0 if threshold is None else np.mean(scores >= np.float32(threshold))
            # half a row instead of 0, so that a smaller power lets rows pass
            pass_shares.append(max(1.0 - float(stop_share), 0.5 / len(scores)))
        return cls(
            record,
            base.chain,
            tuple(pass_shares),
            tuple(_list_pass_shares(scores) for scores in record.scores),
        )

    def point(self, log_power: float) -> OperatingPoint:
        """Measure the setting at a power, given by its logarithm, on the record's rows."""
        # thresholds whose shares are nearest to share ** power
        power = float(np.exp(log_power))
        setting = [
            thresholds[int(np.abs(possible_shares - pass_share**power).argmin())]
            for pass_share, (possible_shares, thresholds) in zip(
                self.pass_shares, self.possible_thresholds, strict=True
            )
        ]
        if not self.record.can_offload:
            setting[-1] = ALWAYS_STOP
        return self.record.measure(setting, self.chain)

    def find_farthest_log_power(
        self, is_allowed: Callable[[OperatingPoint], bool], start: float
    ) -> float:
        """Find the last allowed log power by bisection from `start`, an allowed end of the path."""
        allowed_log_power = start
        forbidden_log_power = -start
        for _ in range(16):  # to 2 MAX_LOG_POWER / 2^16, finer than the steps between candidates
            middle_log_power = 0.5 * (allowed_log_power + forbidden_log_power)
            if is_allowed(self.point(middle_log_power)):
                allowed_log_power = middle_log_power
            else:
                forbidden_log_power = middle_log_power
        return allowed_log_power


def _list_pass_shares(
    scores: NDArray[np.float32],
) -> tuple[NDArray[np.float64], list[float | None]]:
    """List the shares of rows that pass on, and the threshold between distinct scores for each."""
    distinct_scores, counts = np.unique(scores[~np.isnan(scores)], return_counts=True)
    n_passing = np.concatenate([[0], np.cumsum(counts)[:-1], [counts.sum()]])
    n_without_score = len(scores) - counts.sum()  # NaN never stops
    neighbours = zip(distinct_scores.tolist(), distinct_scores.tolist()[1:], strict=False)
    midpoints = [midpoint_threshold(low, high) for low, high in neighbours]
    return (n_without_score + n_passing) / len(scores), [ALWAYS_STOP, *midpoints, None]
