"""Guarantees: bounds that are certified on calibration rows.

A guarantee bounds the loss, the mean cost or the offload rate and, in addition to one of them,
figures of classes (:mod:`.class_guarantee`).

Thresholds look better on the validation rows that they were tuned on than on new rows. A guarantee
is therefore certified on calibration rows that no choice has seen. It says "with confidence 0.95
the bound holds on new instances", if these are independent and drawn like the calibration rows. The
method is Learn-then-Test with a fixed sequence. The order of the candidates does not depend on the
calibration rows. Each candidate is tested at the full level (:mod:`.risk_tests`), and the last one
before the first failure is certified. More candidates do not lower the confidence, so
:func:`.list_candidates` lists many of them.

If rows have groups, groups are independent instead of rows. The promise is then about the mean over
new groups of equal weight. Each test is a bet on the means of the groups, and is valid for any
number of groups. Few groups certify little. A loss of 0.01 at confidence 0.95 needs about 330
groups that lose nothing, because fewer might miss the one group in 100 that loses everything.

References
----------
Angelopoulos, Bates, Candès, Jordan & Lei: Learn then Test: calibrating predictive algorithms
to achieve risk control, 2021 (arXiv 2110.01052).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.class_guarantee import (
    check_class_rows,
    class_test_names,
    classes_pass,
    unused_losses,
)
from gatewise_training.operating_points.frontier import read_goal
from gatewise_training.operating_points.risk_tests import loss_limits, mean_pvalue, rate_pvalue

#: Number of candidates that are tested at once.
CANDIDATES_PER_STEP = 32


@dataclass(frozen=True)
class Promise:
    """A bound of kind "budget", "max_loss" or "offload_rate", and its confidence."""

    kind: str
    bound: float
    confidence: float
    by_class: ClassBounds | None = None  # bounds in addition

    @classmethod
    def from_bounds(
        cls,
        confidence: float = 0.95,
        *,
        by_class: ClassBounds | None = None,
        **bounds: float | None,
    ) -> Promise:
        """Make a promise of exactly one of the bounds `budget`, `max_loss` and `offload_rate`."""
        if not 0 < confidence < 1:
            raise InputError(f"a guarantee's confidence must be between 0 and 1, not {confidence}")
        kind, bound = read_goal(bounds)
        return cls(kind, bound, float(confidence), by_class or None)

    @property
    def level(self) -> float:
        """Largest probability of a false certificate."""
        return 1.0 - self.confidence

    def check_rows(self, truth: NDArray[np.int64], splitter: RowSplitter) -> None:
        """Raise InputError if rows of the classes `truth`, (n,), are too few for the bounds."""
        if self.by_class:
            check_class_rows(self.by_class, truth, splitter, self.level)

    def is_certain(self, records: Sequence[CascadeRecord], point: OperatingPoint) -> bool:
        """Whether a point keeps the bound on any rows with finite scores."""
        record = records[point.chain]
        exits = record.reachable_exits(point.thresholds)
        if self.kind == "max_loss" and self.bound >= 1:
            return True
        if self.kind == "budget":
            return float(record.highest_costs()[exits].max()) <= self.bound
        if self.kind == "offload_rate":
            return not record.has_cloud or record.n_stages not in exits
        if record.has_cloud:
            return exits == [record.n_stages]
        return record is records[-1] and exits == [record.n_stages - 1]


def certify(
    records: CascadeRecord | Sequence[CascadeRecord],
    candidates: Sequence[OperatingPoint],
    promise: Promise,
) -> OperatingPoint | None:
    """Find the boldest candidate that keeps a promise; None if even the first fails."""
    records = check_records(records, promise, accepts_weights=False)
    boldest_pass: tuple[OperatingPoint, str] | None = None
    for point, method in _test_candidates(records, candidates, promise):
        if method is None:
            break
        boldest_pass = point, method
    if boldest_pass is None:
        return None
    # state the terms with the point
    point, method = boldest_pass
    record = records[point.chain]
    measured_point = record.measure(point.thresholds, point.chain)
    terms = {
        "kind": promise.kind,
        "bound": promise.bound,
        "confidence": promise.confidence,
        "calibration_rows": len(records[0].weights),
        "method": method,
    }
    if records[0].splitter.n_groups is not None:
        terms["calibration_groups"] = records[0].splitter.n_groups
    if promise.kind == "max_loss" and measured_point.weighted_accuracy is not None:
        terms["loss"] = "weighted accuracy"
    if promise.by_class:
        assert record.exit_answers is not None
        losses = row_losses(record, records[-1], record.exits(point.thresholds))
        terms |= promise.by_class.by_name()
        terms |= unused_losses(promise.by_class, record.exit_answers.truth, losses)
    return msgspec.structs.replace(measured_point, guarantee=terms)


def check_records(
    records: CascadeRecord | Sequence[CascadeRecord], promise: Promise, *, accepts_weights: bool
) -> Sequence[CascadeRecord]:
    """Check that records belong to the same rows and suit a promise; return them as a sequence."""
    record_list = [records] if isinstance(records, CascadeRecord) else list(records)
    row_counts = {len(record.weights) for record in record_list}
    if len(row_counts) != 1 or row_counts == {0}:
        raise InputError("a guarantee needs one record for each cascade, all of the same rows")
    if not accepts_weights and any((record.weights != 1).any() for record in record_list):
        raise InputError(
            "a guarantee needs calibration rows of weight 1: its tests count rows; "
            "draw rows in proportion to their weights instead"
        )
    if promise.kind == "max_loss" and any(
        not ((record.correctness >= 0) & (record.correctness <= 1)).all() for record in record_list
    ):
        raise InputError(
            "a guaranteed max_loss needs answers that are right by a share between 0 and 1"
        )
    if promise.by_class and any(record.exit_answers is None for record in record_list):
        raise InputError("bounds on classes need records with the answers of all exits")
    return record_list


class _Candidate(NamedTuple):
    """A candidate, the record of its cascade, and the exits of the rows."""

    point: OperatingPoint
    record: CascadeRecord
    exits: NDArray[np.int64]  # (n,)


def _test_candidates(
    records: Sequence[CascadeRecord], candidates: Sequence[OperatingPoint], promise: Promise
) -> Iterator[tuple[OperatingPoint, str | None]]:
    """Yield each candidate with the name of the test that it passes, or None if it fails."""
    reference_record = records[-1]
    has_groups = reference_record.splitter.n_groups is not None
    for start in range(0, len(candidates), CANDIDATES_PER_STEP):
        batch = []
        for point in candidates[start : start + CANDIDATES_PER_STEP]:
            record = records[point.chain]
            batch.append(_Candidate(point, record, record.exits(point.thresholds)))
        # the bound on all rows, for several candidates at once
        is_passed_by_candidate, method = _test_bound(batch, records, promise)
        for candidate, is_passed in zip(batch, is_passed_by_candidate.tolist(), strict=True):
            point, record, exits = candidate
            passed_test = method if is_passed else None
            if promise.is_certain(records, point):
                passed_test = "certain"
            # bounds on classes: each is tested at the full level, and all must pass
            if passed_test is not None and promise.by_class:
                assert record.exit_answers is not None
                keeps_class_bounds = classes_pass(
                    promise.by_class,
                    record.exit_answers,
                    record.splitter,
                    exits,
                    losses=row_losses(record, reference_record, exits),
                    level=promise.level,
                )
                class_tests = (
                    "betting on groups" if has_groups else class_test_names(promise.by_class)
                )
                passed_test = (
                    f"{passed_test}; by class {class_tests}" if keeps_class_bounds else None
                )
            yield point, passed_test


def _test_bound(
    batch: Sequence[_Candidate], records: Sequence[CascadeRecord], promise: Promise
) -> tuple[NDArray[np.bool_], str]:
    """Test the bound on all rows; return which candidates pass, and the name of the test."""
    reference_record = records[-1]
    has_groups = reference_record.splitter.n_groups is not None
    has_binary_losses = reference_record.class_weights is None and all(
        np.isin(record.correctness, (0, 1)).all() for record in records
    )
    if promise.kind == "offload_rate" and not has_groups:
        is_offloaded = _mark_offloads(batch)
        pvalues = rate_pvalue(is_offloaded.sum(axis=1), is_offloaded.shape[1], promise.bound)
        return pvalues <= promise.level, "exact binomial"
    if promise.kind == "max_loss" and not has_groups and has_binary_losses:
        if promise.bound >= 1:  # no loss exceeds 1
            return np.ones(len(batch), np.bool_), "exact paired difference"
        losses = _compute_losses(batch, reference_record)
        n_worse = (losses > 0).sum(axis=1)
        n_better = (losses < 0).sum(axis=1)
        limits = loss_limits(losses.shape[1], promise.bound, promise.level)
        return n_worse - n_better <= limits[n_worse + n_better], "exact paired difference"
    risks = _compute_risks(batch, reference_record, promise)
    unit_risks = reference_record.splitter.group_means(risks.by_row) if has_groups else risks.by_row
    pvalues = mean_pvalue(unit_risks, risks.bound, risks.lowest, risks.highest, promise.level)
    return pvalues <= promise.level, "betting on groups" if has_groups else "betting"


def row_losses(
    record: CascadeRecord, reference_record: CascadeRecord, exits: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Get the loss of each row, (n,): 1 if only the reference is right, -1 if only the record."""
    losses: NDArray[np.float64] = (
        reference_record.correctness[-1] - record.correctness[exits, np.arange(len(exits))]
    )
    return losses


class _Risks(NamedTuple):
    """The figure of each row for each candidate; a promise bounds its mean."""

    by_row: NDArray[np.float64]  # (n_candidates, n)
    lowest: NDArray[np.float64]  # (n_candidates,): lowest possible figure of a row
    highest: NDArray[np.float64]  # (n_candidates,)
    bound: float  # on the mean over the rows


def _compute_risks(
    batch: Sequence[_Candidate], reference_record: CascadeRecord, promise: Promise
) -> _Risks:
    """Get the offloads, the costs or the weighted losses that a promise bounds."""
    if promise.kind == "offload_rate":
        zeros = np.zeros(len(batch))
        return _Risks(_mark_offloads(batch).astype(np.float64), zeros, zeros + 1, promise.bound)
    if promise.kind == "budget":
        costs = np.stack([record.costs(exits) for _, record, exits in batch])
        lowest_costs = []
        highest_costs = []
        for point, record, _ in batch:
            reachable_exits = record.reachable_exits(point.thresholds)
            lowest_costs.append(record.lowest_costs()[reachable_exits].min())
            highest_costs.append(record.highest_costs()[reachable_exits].max())
        return _Risks(costs, np.array(lowest_costs), np.array(highest_costs), promise.bound)
    # weighted losses: mean(weight * loss) <= bound where mean(weight * (loss - bound)) <= 0
    losses = _compute_losses(batch, reference_record)
    weights = reference_record.scaled_class_weights
    largest_weight = float(weights.max())
    return _Risks(
        weights * (losses - promise.bound),
        lowest=np.full(len(losses), -largest_weight * (1 + promise.bound)),
        highest=np.full(len(losses), largest_weight * (1 - promise.bound)),
        bound=0.0,
    )


def _mark_offloads(batch: Sequence[_Candidate]) -> NDArray[np.bool_]:
    """Mark the offloaded rows, shape (n_candidates, n)."""
    return np.stack([exits == record.n_stages for _, record, exits in batch])


def _compute_losses(
    batch: Sequence[_Candidate], reference_record: CascadeRecord
) -> NDArray[np.float64]:
    """Get the loss of each row, shape (n_candidates, n)."""
    return np.stack([row_losses(record, reference_record, exits) for _, record, exits in batch])
