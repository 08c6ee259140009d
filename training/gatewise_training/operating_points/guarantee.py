"""Guarantees: bounds that are certified on calibration rows.

Bounds are those on loss, mean cost or offload rate and, beside one of them, on recall and
precision of classes.

Thresholds tuned on validation rows overshoot there. A guarantee says, from calibration rows
that no choice has seen: "with confidence 0.95 the bound holds on new instances", drawn like the
calibration rows and independent of each other. It is made by Learn-then-Test with a fixed
sequence: candidates stand in an order that was fixed without the calibration rows, each is
tested at the full level (:mod:`.risk_tests`), and the last one before the first failure is
taken. The number of candidates costs nothing, so :func:`.candidates` sets them as close as the
validation rows allow.

References
----------
Angelopoulos, Bates, Candès, Jordan & Lei: Learn then Test: calibrating predictive algorithms
to achieve risk control, 2021 (arXiv 2110.01052).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_training.operating_points.class_figures import ClassBounds, kept_shares
from gatewise_training.operating_points.operating_point import OperatingPoint
from gatewise_training.operating_points.risk_tests import loss_limits, mean_pvalue, rate_pvalue
from gatewise_training.operating_points.thresholds import CascadeRecord

__all__ = ["Loss", "Promise", "certify", "checked_records"]

Loss = Literal["difference", "regret"]

TOGETHER = 32
"""Candidates that are tested in one go."""


@dataclass(frozen=True)
class Promise:
    """A bound to keep, of kind "budget", "max_loss" or "offload_rate", and its confidence."""

    kind: str
    bound: float
    confidence: float
    by_class: ClassBounds | None = None  # to keep too

    @classmethod
    def from_bounds(
        cls,
        confidence: float = 0.95,
        *,
        by_class: ClassBounds | None = None,
        **bounds: float | None,
    ) -> Promise:
        """Take the one bound of `budget`, `max_loss` and `offload_rate` that is not None."""
        if not 0 < confidence < 1:
            raise InputError(f"a guarantee's confidence must be between 0 and 1, not {confidence}")
        given = [(kind, bound) for kind, bound in bounds.items() if bound is not None]
        if len(given) != 1:
            raise InputError("give exactly one of budget, max_loss and offload_rate")
        kind, bound = given[0]
        if not (0 <= bound <= (np.finfo(float).max if kind == "budget" else 1)):
            limits = "a number of at least 0" if kind == "budget" else "between 0 and 1"
            raise InputError(f"{kind} must be {limits}, not {bound}")
        return cls(kind, float(bound), float(confidence), by_class or None)

    @property
    def level(self) -> float:
        """Probability of a false certificate, at most."""
        return 1.0 - self.confidence

    def is_certain(self, cascades: Sequence[CascadeRecord], point: OperatingPoint) -> bool:
        """Whether thresholds alone keep the one bound, on any rows with finite scores."""
        record = cascades[point.chain]
        exits = reachable(record, point.thresholds)
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
    *,
    loss: Loss = "difference",
) -> OperatingPoint | None:
    """Find the boldest candidate that keeps a promise."""
    cascades = checked_records(records, promise, weighted=False)
    found: tuple[OperatingPoint, str] | None = None
    for point, method in _tested(cascades, candidates, promise, loss):
        if method is None:
            break
        found = point, method
    if found is None:
        return None
    point, method = found
    measured = cascades[point.chain].measure(point.thresholds, point.chain)
    terms = {
        "kind": promise.kind,
        "bound": promise.bound,
        "confidence": promise.confidence,
        "calibration_rows": len(cascades[0].weights),
        "method": method,
    }
    if promise.kind == "max_loss" and measured.weighted_accuracy is not None:
        terms["loss"] = "weighted accuracy"
    if promise.by_class:
        terms |= promise.by_class.named()
    return replace(measured, guarantee=terms)


def reachable(record: CascadeRecord, thresholds: Sequence[float | None]) -> list[int]:
    """List the exits that a row with finite scores can take; the last is the cloud."""
    exits = []
    for stage, threshold in enumerate(thresholds):
        if threshold is not None:
            exits.append(stage)
            if threshold <= ALWAYS_STOP and not np.isnan(record.scores[stage]).any():
                return exits
    return [*exits, record.n_stages]


def checked_records(
    records: CascadeRecord | Sequence[CascadeRecord], promise: Promise, *, weighted: bool
) -> Sequence[CascadeRecord]:
    """Check that records fit together and suit a promise; they come back as a sequence."""
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
        not np.isin(record.correct, (0, 1)).all() for record in cascades
    ):
        raise InputError("a guaranteed max_loss needs answers that are right or wrong (1 or 0)")
    if promise.by_class and any(record.answers is None for record in cascades):
        raise InputError("bounds on classes need records with the answers of all exits")
    return cascades


def _tested(
    cascades: Sequence[CascadeRecord],
    candidates: Sequence[OperatingPoint],
    promise: Promise,
    loss: Loss,
) -> Iterator[tuple[OperatingPoint, str | None]]:
    """Yield each candidate with the method that certifies it, or None."""
    for start in range(0, len(candidates), TOGETHER):
        group = candidates[start : start + TOGETHER]
        owners = [cascades[p.chain] for p in group]
        exits = np.stack([r.exits(p.thresholds) for r, p in zip(owners, group, strict=True)])
        if promise.kind == "offload_rate":
            sent = [(e == r.n_stages).sum() for r, e in zip(owners, exits, strict=True)]
            passed = rate_pvalue(sent, exits.shape[1], promise.bound) <= promise.level
            method = "exact binomial"
        elif promise.kind == "budget":
            passed, method = _costs_pass(owners, group, exits, promise), "betting"
        elif cascades[-1].class_weights is not None:
            passed = _weighted_losses_pass(owners, cascades[-1], exits, promise, loss)
            method = "betting"
        else:
            passed = _losses_pass(owners, cascades[-1].correct[-1], exits, promise, loss)
            method = "exact paired difference" if loss == "difference" else "exact regret"
        for point, record, out, good in zip(group, owners, exits, passed, strict=True):
            certain = promise.is_certain(cascades, point)
            found = "certain" if certain else method if good else None
            # each bound is tested at the full level, and all must pass
            if found is not None and promise.by_class:
                kept = _classes_pass(record, out, promise.by_class, promise.level)
                found = f"{found}; by class exact binomial" if kept else None
            yield point, found


def _classes_pass(
    record: CascadeRecord, exits: NDArray[np.int64], bounds: ClassBounds, level: float
) -> bool:
    """Whether every bound on a class passes; given how many rows it counts, a rate as any other."""
    assert record.answers is not None
    for kind, c, bound in bounds.items():
        rows, missed = kept_shares(record.answers, exits, kind, c)
        if not float(rate_pvalue(missed, rows, 1 - bound)) <= level:
            return False
    return True


def _costs_pass(
    owners: Sequence[CascadeRecord],
    group: Sequence[OperatingPoint],
    exits: NDArray[np.int64],
    promise: Promise,
) -> NDArray[np.bool_]:
    # a bet needs rows in random order, and files are often sorted
    order = np.random.default_rng(0).permutation(exits.shape[1])
    costs = np.stack([r.costs(e)[order] for r, e in zip(owners, exits, strict=True)])
    ways = [reachable(r, p.thresholds) for r, p in zip(owners, group, strict=True)]
    pvalues = mean_pvalue(
        costs,
        promise.bound,
        lowest=np.array([r.lowest_costs()[w].min() for r, w in zip(owners, ways, strict=True)]),
        highest=np.array([r.highest_costs()[w].max() for r, w in zip(owners, ways, strict=True)]),
        level=promise.level,
    )
    return pvalues <= promise.level


def _weighted_losses_pass(
    owners: Sequence[CascadeRecord],
    reference: CascadeRecord,
    exits: NDArray[np.int64],
    promise: Promise,
    loss: Loss,
) -> NDArray[np.bool_]:
    """Bet against "the mean of weight * (loss - bound) is above 0", weights by class."""
    n = exits.shape[1]
    order = np.random.default_rng(0).permutation(n)
    right = np.stack([r.correct[e, np.arange(n)] for r, e in zip(owners, exits, strict=True)])
    lost = reference.correct[-1] - right
    if loss == "regret":
        lost = np.maximum(lost, 0.0)
    weights = reference.worths
    excess = weights * (lost - promise.bound)
    most = float(weights.max())
    lowest = np.full(len(excess), -most * (1 + promise.bound))
    highest = np.full(len(excess), most * (1 - promise.bound))
    pvalues = mean_pvalue(
        excess[:, order], 0.0, lowest=lowest, highest=highest, level=promise.level
    )
    return pvalues <= promise.level


def _losses_pass(
    owners: Sequence[CascadeRecord],
    reference: NDArray[np.float64],
    exits: NDArray[np.int64],
    promise: Promise,
    loss: Loss,
) -> NDArray[np.bool_]:
    n = exits.shape[1]
    right = np.stack([r.correct[e, np.arange(n)] for r, e in zip(owners, exits, strict=True)])
    worse = (right < reference).sum(axis=1)
    if loss == "regret":
        return rate_pvalue(worse, n, promise.bound) <= promise.level
    better = (right > reference).sum(axis=1)
    limits = loss_limits(n, promise.bound, promise.level)
    passed: NDArray[np.bool_] = worse - better <= limits[worse + better]
    return passed
