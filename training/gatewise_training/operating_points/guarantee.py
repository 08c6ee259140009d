"""Guarantees: bounds that are certified on calibration rows.

A guarantee bounds the loss, the mean cost or the offload rate and, in addition to one of them,
figures of classes (:mod:`.class_guarantee`).

Thresholds look better on the validation rows that they were tuned on than on new rows. A guarantee
is therefore certified on calibration rows that no choice has seen. It says "with confidence 0.95
the bound holds on new instances", if these are independent and drawn like the calibration rows. The
method is Learn-then-Test with a fixed sequence. The order of the candidates does not depend on the
calibration rows. Each candidate is tested at the full level (:mod:`.risk_tests`), and the last one
before the first failure is certified. More candidates do not lower the confidence, so that
:func:`.candidates` lists many.

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

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.class_guarantee import (
    check_class_rows,
    class_tests,
    classes_pass,
    unused_losses,
)
from gatewise_training.operating_points.risk_tests import (
    loss_limits,
    mean_pvalue,
    rate_pvalue,
)
from gatewise_training.operating_points.thresholds import CascadeRecord

CANDIDATES_PER_STEP = 32
"""Number of candidates that are tested at once."""


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
        goals = [(kind, bound) for kind, bound in bounds.items() if bound is not None]
        if len(goals) != 1:
            raise InputError("give exactly one of budget, max_loss and offload_rate")
        kind, bound = goals[0]
        if not (0 <= bound <= (np.finfo(float).max if kind == "budget" else 1)):
            limits = "a number of at least 0" if kind == "budget" else "between 0 and 1"
            raise InputError(f"{kind} must be {limits}, not {bound}")
        return cls(kind, float(bound), float(confidence), by_class or None)

    @property
    def level(self) -> float:
        """Largest probability of a false certificate."""
        return 1.0 - self.confidence

    def check_rows(self, truth: NDArray[np.int64], splitter: RowSplitter) -> None:
        """Raise InputError if rows of the classes `truth`, (n,), are too few for the bounds."""
        if self.by_class:
            check_class_rows(self.by_class, truth, splitter, self.level)

    def is_certain(self, cascades: Sequence[CascadeRecord], point: OperatingPoint) -> bool:
        """Whether a point keeps the bound on any rows with finite scores."""
        record = cascades[point.chain]
        exits = record.reachable(point.thresholds)
        if self.kind == "max_loss" and self.bound >= 1:
            return True
        if self.kind == "budget":
            return float(record.highest_costs()[exits].max()) <= self.bound
        if self.kind == "offload_rate":
            return not record.has_cloud or record.n_stages not in exits
        if record.has_cloud:
            return exits == [record.n_stages]
        return record is cascades[-1] and exits == [record.n_stages - 1]


def certify(
    records: CascadeRecord | Sequence[CascadeRecord],
    candidates: Sequence[OperatingPoint],
    promise: Promise,
) -> OperatingPoint | None:
    """Find the boldest candidate that keeps a promise."""
    cascades = checked_records(records, promise, weighted=False)
    boldest: tuple[OperatingPoint, str] | None = None
    for point, method in _tested(cascades, candidates, promise):
        if method is None:
            break
        boldest = point, method
    if boldest is None:
        return None
    # state the terms with the point
    point, method = boldest
    record = cascades[point.chain]
    measured = record.measure(point.thresholds, point.chain)
    terms = {
        "kind": promise.kind,
        "bound": promise.bound,
        "confidence": promise.confidence,
        "calibration_rows": len(cascades[0].weights),
        "method": method,
    }
    if cascades[0].splitter.n_groups is not None:
        terms["calibration_groups"] = cascades[0].splitter.n_groups
    if promise.kind == "max_loss" and measured.weighted_accuracy is not None:
        terms["loss"] = "weighted accuracy"
    if promise.by_class:
        assert record.answers is not None
        lost = lost_rows(record, cascades[-1], record.exits(point.thresholds))
        terms |= promise.by_class.named()
        terms |= unused_losses(promise.by_class, record.answers.truth, lost)
    return msgspec.structs.replace(measured, guarantee=terms)


def checked_records(
    records: CascadeRecord | Sequence[CascadeRecord], promise: Promise, *, weighted: bool
) -> Sequence[CascadeRecord]:
    """Check that records belong to the same rows and suit a promise; return them as a sequence."""
    cascades = [records] if isinstance(records, CascadeRecord) else list(records)
    sizes = {len(record.weights) for record in cascades}
    if len(sizes) != 1 or sizes == {0}:
        raise InputError("a guarantee needs one record for each cascade, all of the same rows")
    if not weighted and any((record.weights != 1).any() for record in cascades):
        raise InputError(
            "a guarantee needs calibration rows of weight 1: its tests count rows; "
            "draw rows in proportion to their weights instead"
        )
    if promise.kind == "max_loss" and any(
        not ((record.correctness >= 0) & (record.correctness <= 1)).all() for record in cascades
    ):
        raise InputError(
            "a guaranteed max_loss needs answers that are right by a share between 0 and 1"
        )
    if promise.by_class and any(record.answers is None for record in cascades):
        raise InputError("bounds on classes need records with the answers of all exits")
    return cascades


def _tested(
    cascades: Sequence[CascadeRecord],
    candidates: Sequence[OperatingPoint],
    promise: Promise,
) -> Iterator[tuple[OperatingPoint, str | None]]:
    """Yield each candidate with the name of the test that it passes; None if it fails."""
    reference = cascades[-1]
    level = promise.level
    grouped = reference.splitter.n_groups is not None
    is_counted = reference.class_weights is None and all(
        np.isin(record.correctness, (0, 1)).all() for record in cascades
    )
    for start in range(0, len(candidates), CANDIDATES_PER_STEP):
        group = candidates[start : start + CANDIDATES_PER_STEP]
        owners = [cascades[p.chain] for p in group]
        exits = np.stack([r.exits(p.thresholds) for r, p in zip(owners, group, strict=True)])
        # the bound on all rows, for several candidates at once
        if promise.kind == "offload_rate" and not grouped:
            offloaded = _offloaded(owners, exits)
            passed = rate_pvalue(offloaded.sum(axis=1), offloaded.shape[1], promise.bound) <= level
            method = "exact binomial"
        elif promise.kind == "max_loss" and not grouped and is_counted:
            passed = np.ones(len(group), np.bool_)
            if promise.bound < 1:  # no loss exceeds 1
                lost = _lost(owners, reference, exits)
                worse = (lost > 0).sum(axis=1)
                better = (lost < 0).sum(axis=1)
                limits = loss_limits(lost.shape[1], promise.bound, level)
                passed = worse - better <= limits[worse + better]
            method = "exact paired difference"
        else:
            values, lowest, highest, bound = _risks(owners, group, reference, exits, promise)
            means = reference.splitter.group_means(values) if grouped else values
            passed = mean_pvalue(means, bound, lowest, highest, level) <= level
            method = "betting on groups" if grouped else "betting"
        for point, record, point_exits, is_passed in zip(group, owners, exits, passed, strict=True):
            certain = promise.is_certain(cascades, point)
            proof = "certain" if certain else method if is_passed else None
            # bounds on classes: each is tested at the full level, and all must pass
            if proof is not None and promise.by_class:
                answers = record.answers
                lost = lost_rows(record, reference, point_exits)
                assert answers is not None
                all_pass = classes_pass(
                    promise.by_class, answers, record.splitter, point_exits, lost, level
                )
                class_method = "betting on groups" if grouped else class_tests(promise.by_class)
                proof = f"{proof}; by class {class_method}" if all_pass else None
            yield point, proof


def lost_rows(
    record: CascadeRecord, reference: CascadeRecord, exits: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Get the loss of each row, (n,): 1 if only the reference is right, -1 if only the record."""
    lost: NDArray[np.float64] = (
        reference.correctness[-1] - record.correctness[exits, np.arange(len(exits))]
    )
    return lost


def _risks(
    owners: Sequence[CascadeRecord],
    group: Sequence[OperatingPoint],
    reference: CascadeRecord,
    exits: NDArray[np.int64],
    promise: Promise,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """Get the values of the rows, their lowest and highest possible values, and their bound.

    The values have shape (n_candidates, n), and their limits (n_candidates,).
    """
    if promise.kind == "offload_rate":
        zero = np.zeros(len(owners))
        return _offloaded(owners, exits).astype(np.float64), zero, zero + 1, promise.bound
    if promise.kind == "budget":
        reachable = [r.reachable(p.thresholds) for r, p in zip(owners, group, strict=True)]
        return (
            np.stack([r.costs(e) for r, e in zip(owners, exits, strict=True)]),
            np.array([r.lowest_costs()[w].min() for r, w in zip(owners, reachable, strict=True)]),
            np.array([r.highest_costs()[w].max() for r, w in zip(owners, reachable, strict=True)]),
            promise.bound,
        )
    lost = _lost(owners, reference, exits)
    weights = reference.scaled_class_weights
    largest = float(weights.max())
    return (
        weights * (lost - promise.bound),
        np.full(len(lost), -largest * (1 + promise.bound)),
        np.full(len(lost), largest * (1 - promise.bound)),
        0.0,
    )


def _offloaded(owners: Sequence[CascadeRecord], exits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the offloaded rows, shape (n_candidates, n)."""
    return np.stack([e == r.n_stages for r, e in zip(owners, exits, strict=True)])


def _lost(
    owners: Sequence[CascadeRecord], reference: CascadeRecord, exits: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Get the loss of each row, shape (n_candidates, n)."""
    return np.stack([lost_rows(r, reference, e) for r, e in zip(owners, exits, strict=True)])
