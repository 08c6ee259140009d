"""Thresholds of a cascade's stages, by exact-cost coordinate descent along the frontier.

For a price ``lam`` of one unit of cost, the thresholds shall maximise, on validation rows,
``accuracy - lam * mean cost``. With all thresholds but one fixed, the best value of that one
is found exactly: sort the rows that reach the stage by their score, and the gain of stopping
at or above each cut is a running sum. Passes over the stages repeat until nothing changes.

Two things keep the thresholds from fitting noise. What a stage is worth on a row is not
whether it happened to be right there but how often it is right at that score (an isotonic
fit). And the optimism of tuning is taken off a setting's figures: how much better thresholds
tuned on four fifths of the rows do there than on the fifth that they have not seen.

Cuts lie midway between neighbouring distinct scores (:func:`gatewise.decision.midway`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numba
import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from gatewise.acquisition import at_exits
from gatewise.decision import ALWAYS_STOP, exit_stages, midway, reachable_exits
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.packed_size import PackedSizes

FOLDS = 5

EVERY = 5
"""Of every so many prices one is cross-fitted: optimism changes slowly between them."""

ROWS_A_CUT = 20
"""Rows for each threshold tried: with more, the luckiest would be picked."""


@dataclass(frozen=True, eq=False)
class CascadeRecord:
    """Scores, right answers and costs of a cascade's stages on labelled rows."""

    scores: NDArray[np.float32]  # (n_stages, n): stop scores; NaN never stops
    # (n_stages + 1, n): 1 where the stage's answer is right; the last row is the high-cost model's.
    # Without one, it is the reference's, which losses are measured against and no row is sent to
    correct: NDArray[np.float64]
    # (n_stages + 1,) or (n_stages + 1, n): cost of an instance that leaves at each stage, and of an
    # offloaded one: the same for all rows, or a row's own where features are acquired node by node
    exit_costs: NDArray[np.float64]
    weights: NDArray[np.float64]  # (n,): of mean 1
    has_cloud: bool = True
    # (n_stages + 1, n): whether the stage's answer is the high-cost model's
    agrees: NDArray[np.bool_] | None = None
    trees: tuple[int, ...] = ()  # that a decision of each stage evaluates
    nbytes: tuple[int, ...] = ()  # sizes of the stages' models
    packed: PackedSizes | None = None  # the same, as a device keeps them
    # (n_stages + 1,): largest cost of leaving at each exit on any row, these or others. Costs that
    # are the same for all rows are their own limits
    cost_limits: NDArray[np.float64] | None = None
    # (n,): how much a right answer counts beside `weights`, which costs and rates have alone
    class_weights: NDArray[np.float64] | None = None
    answers: ExitAnswers | None = None
    given_splitter: RowSplitter | None = None  # of the rows; None: they are alike
    may_offload: bool = True  # False: an instance that is offloaded would cost too much

    @property
    def offloads(self) -> bool:
        """Whether there is a high-cost model that rows may be sent to."""
        return self.has_cloud and self.may_offload

    @property
    def splitter(self) -> RowSplitter:
        """Groups and times of the rows."""
        return self.given_splitter or RowSplitter(len(self.weights))

    @property
    def units(self) -> int:
        """How many parts of the record are independent of each other: groups, or else rows."""
        return self.splitter.n_groups or len(self.weights)

    @property
    def n_stages(self) -> int:
        """Number of stages before the high-cost model."""
        return len(self.scores)

    def rows(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> CascadeRecord:
        """Get the same record of some of the rows."""
        weights = self.weights[chosen]
        costs = self.exit_costs
        return replace(
            self,
            exit_costs=costs[:, chosen] if costs.ndim == 2 else costs,
            scores=self.scores[:, chosen],
            correct=self.correct[:, chosen],
            agrees=None if self.agrees is None else self.agrees[:, chosen],
            weights=weights / weights.mean(),
            class_weights=None if self.class_weights is None else self.class_weights[chosen],
            answers=None if self.answers is None else self.answers.rows(chosen),
            given_splitter=self.given_splitter and self.given_splitter.take(chosen),
        )

    @property
    def worths(self) -> NDArray[np.float64]:
        """What a right answer is worth by its class, shape (n,): of mean 1."""
        own = self.class_weights
        if own is None:
            return np.ones(len(self.weights))
        worths: NDArray[np.float64] = own / np.average(own, weights=self.weights)
        return worths

    @property
    def merits(self) -> NDArray[np.float64]:
        """Weights of right answers, shape (n,): of rows and, where they are given, of classes."""
        return self.weights if self.class_weights is None else self.weights * self.worths

    def merit(self) -> float:
        """Get the accuracy, or weighted accuracy, of the last exit."""
        return float(np.average(self.correct[-1], weights=self.merits))

    def exits(self, thresholds: Iterable[float | None]) -> NDArray[np.int64]:
        """Get the stage at which each row leaves, shape (n,)."""
        return exit_stages(list(self.scores), tuple(thresholds))

    def costs(self, exits: NDArray[np.int64]) -> NDArray[np.float64]:
        """Get the cost of each row if the rows leave at `exits`, shape (n,)."""
        return at_exits(self.exit_costs, exits)

    def highest_costs(self) -> NDArray[np.float64]:
        """Get the most that leaving at each exit can cost on any row, shape (n_stages + 1,)."""
        if self.cost_limits is not None:
            return self.cost_limits
        if self.exit_costs.ndim == 2:
            raise InputError("costs of these rows do not limit those of new rows; give cost_limits")
        return self.exit_costs

    def reachable(self, thresholds: Sequence[float | None]) -> list[int]:
        """List the exits that a row with finite scores can take; the last is the cloud."""
        return reachable_exits(thresholds, lambda s: bool(np.isnan(self.scores[s]).any()))

    def within_cost(self, most: float | None) -> CascadeRecord:
        """Get the same record, without offloads if one could cost more than `most`."""
        may = most is None or float(self.highest_costs()[-1]) <= most
        return self if may == self.may_offload else replace(self, may_offload=may)

    def lowest_costs(self) -> NDArray[np.float64]:
        """Get the least that leaving at each exit can cost, shape (n_stages + 1,)."""
        return self.exit_costs if self.exit_costs.ndim == 1 else np.zeros(self.n_stages + 1)

    def measure(self, thresholds: Iterable[float | None], chain: int = 0) -> OperatingPoint:
        """Measure a setting of the thresholds as an operating point."""
        setting = tuple(thresholds)
        return self.point(setting, self.exits(setting), chain)

    def point(
        self, thresholds: tuple[float | None, ...], exits: NDArray[np.int64], chain: int = 0
    ) -> OperatingPoint:
        """Make the operating point of a setting with which rows leave at `exits`."""
        rows = np.arange(len(exits))
        weights = self.weights
        merits = self.merits
        whole = weights.sum()

        def mean(values: NDArray[Any]) -> float:
            return float((values * weights).sum() / whole)  # np.average takes twice the time

        right = self.correct[exits, rows]
        gain = right - self.correct[-1]
        mean_gain = float((gain * merits).sum() / merits.sum())
        error = (mean((self.worths * (gain - mean_gain)) ** 2) / len(exits)) ** 0.5
        groups = self.splitter.n_groups
        if groups is not None:  # few groups may happen to agree: never less than of as many rows
            parts = weights * self.worths * (gain - mean_gain) / whole
            error = max(error, self.splitter.clustered_error(parts))
        figures = {} if self.answers is None else self.answers.figures(exits, weights)
        if self.class_weights is not None:
            figures["weighted_accuracy"] = float((right * merits).sum() / merits.sum())
        open_stages = [s for s, t in enumerate(thresholds) if t is not None]
        run = np.zeros(self.n_stages + 1)  # trees evaluated by a row that leaves at each stage
        for s in open_stages if self.trees else []:
            run[s:] += self.trees[s]
        left = np.bincount(exits, weights, self.n_stages + 1)
        known = self.cost_limits is not None or self.exit_costs.ndim == 1
        ways = self.reachable(thresholds)
        return OperatingPoint(
            thresholds=thresholds,
            cost=mean(self.costs(exits)),
            accuracy=mean(right),
            offload_rate=mean(exits == self.n_stages),
            accuracy_error=error,
            agreement=None if self.agrees is None else mean(self.agrees[exits, rows]),
            trees=mean(run[exits]),
            nbytes=sum(self.nbytes[s] for s in open_stages if self.nbytes),
            bytes=0 if self.packed is None else self.packed.kept(open_stages),
            max_cost=float(self.highest_costs()[ways].max()) if known else None,
            chain=chain,
            exit_shares=tuple((left / left.sum()).tolist()),
            validation_groups=groups,
            **figures,
        )


def tune(
    record: CascadeRecord,
    lams: NDArray[np.float64],
    *,
    passes: int = 6,
) -> list[tuple[float | None, ...]]:
    """Find the best thresholds for each price of cost, warm-started from price to price.

    Shapes: `lams` (n_lams,).
    """
    scores = np.where(np.isnan(record.scores), -np.inf, record.scores).astype(np.float32, "C")
    order = np.argsort(-scores, axis=1, kind="stable")
    last = -1 if record.offloads else record.n_stages - 1
    # one kernel for all shapes: a copy of a few megabytes is cheaper than compiling another
    costs = record.exit_costs.reshape(record.n_stages + 1, -1)
    costs = np.ascontiguousarray(np.broadcast_to(costs, record.correct.shape))
    correct = record.correct
    if record.class_weights is not None:  # costs have no class
        correct = correct * record.worths
    cuts = _descend(
        scores, order, correct, costs, record.weights,
        np.sort(np.asarray(lams, np.float64))[::-1].copy(), last, passes,
    )  # fmt: skip
    return [
        tuple(_threshold(scores[s], order[s], int(cut)) for s, cut in enumerate(row))
        for row in cuts
    ]


def frontier_points(
    record: CascadeRecord,
    *,
    chain: int = 0,
    n_lams: int = 150,
    n_cuts: int = 40,
    seed: int = 0,
    emphases: Sequence[NDArray[np.float64]] = (),
) -> list[OperatingPoint]:
    """List operating points of a candidate cascade along its whole frontier, in no order.

    Beside the jointly tuned settings there are the simple ones, so that the cascade never loses
    to a part of itself: each stage alone, each stage before the cloud with thresholds at
    `n_cuts` quantiles of its score, and all-cloud. Tuned settings, for `n_lams` prices of cost
    from nearly free to prohibitive, carry cross-fitted figures; the simple ones have one threshold
    at most and are measured as they are. `chain` is the number written into the points.
    `emphases` are further weights of the classes, shape (n_classes,), to tune under; the points
    are measured without them.
    """
    points = _tuned_points(record, record, chain, n_lams, seed) if record.n_stages > 1 else []
    for weights in emphases if record.n_stages > 1 and record.answers is not None else ():
        assert record.answers is not None
        own = 1.0 if record.class_weights is None else record.class_weights
        aim = replace(record, class_weights=own * weights[record.answers.truth])
        points += _tuned_points(record, aim, chain, n_lams, seed)
    settings: dict[tuple[float | None, ...], None] = {}
    for s in range(record.n_stages):
        cuts = _quantile_cuts(record.scores[s], n_cuts) if record.offloads else []
        for threshold in [ALWAYS_STOP, *cuts]:
            alone: list[float | None] = [None] * record.n_stages
            alone[s] = threshold
            settings[tuple(alone)] = None
    if record.offloads:
        settings[(None,) * record.n_stages] = None
    return points + [record.measure(setting, chain) for setting in settings]


def _tuned_points(
    record: CascadeRecord, aim: CascadeRecord, chain: int, n_lams: int, seed: int
) -> list[OperatingPoint]:
    """List the settings jointly tuned on `aim`, the same record under other class weights.

    Each is measured on the record, less the optimism of tuning.
    """
    lams = np.geomspace(3.0, 3e-3, n_lams) / max(float(record.exit_costs.max()), 1e-12)
    some = np.unique(np.append(np.arange(0, n_lams, EVERY), n_lams - 1))
    optimism = np.zeros((3, len(some)))  # of cost, accuracy and weighted accuracy
    folds = record.splitter.folds(None, FOLDS, seed)
    for fit_rows, unseen_rows in folds:
        seen = record.rows(fit_rows)
        unseen = record.rows(unseen_rows)
        for i, setting in enumerate(tune(smoothed(aim.rows(fit_rows)), lams[some])):
            here = seen.measure(setting)
            there = unseen.measure(setting)
            gaps = there.cost - here.cost, here.accuracy - there.accuracy, here.merit - there.merit
            optimism[:, i] += np.array(gaps) / len(folds)
    if not folds:
        return []
    extra_cost, worse, less = (
        np.maximum(np.interp(np.arange(n_lams), some, gaps), 0.0) for gaps in optimism
    )
    points: dict[tuple[float | None, ...], OperatingPoint] = {}
    for i, setting in enumerate(tune(smoothed(aim), lams)):
        point = record.measure(setting, chain)
        corrected = msgspec.structs.replace(
            point,
            cost=point.cost + float(extra_cost[i]),
            accuracy=point.accuracy - float(worse[i]),
        )
        if point.weighted_accuracy is not None:
            weighted = point.weighted_accuracy - float(less[i])
            corrected = msgspec.structs.replace(corrected, weighted_accuracy=weighted)
        points.setdefault(setting, corrected)
    return list(points.values())


def smoothed(record: CascadeRecord) -> CascadeRecord:
    """Replace whether a stage was right by how often it is right at that score.

    An isotonic fit a stage: a wider margin is never worth less. The high-cost model's row stays.
    """
    correct = record.correct.copy()
    for s in range(record.n_stages):
        known = ~np.isnan(record.scores[s])
        if known.any():
            fit = IsotonicRegression(out_of_bounds="clip")
            fit.fit(record.scores[s, known], correct[s, known], record.merits[known])
            correct[s, known] = fit.predict(record.scores[s, known])
    return replace(record, correct=correct)


def _quantile_cuts(scores: NDArray[np.float32], n_cuts: int) -> list[float]:
    n_cuts = max(2, min(n_cuts, len(scores) // ROWS_A_CUT))  # each more is one more to be lucky
    distinct = np.unique(scores[~np.isnan(scores)])
    if len(distinct) < 2:
        return []
    places = np.unique(np.linspace(0, len(distinct) - 2, n_cuts).astype(int))
    return [midway(float(distinct[i]), float(distinct[i + 1])) for i in places]


def _threshold(scores: NDArray[np.float32], order: NDArray[np.intp], cut: int) -> float | None:
    """Get the threshold with which the best `cut` rows stop."""
    if cut == 0:
        return None
    if cut >= len(order):
        return ALWAYS_STOP
    below = float(scores[order[cut]])
    above = float(scores[order[cut - 1]])
    return above if np.isneginf(below) else midway(below, above)


@numba.njit(cache=True, nogil=True)
def _descend(
    scores: Any, order: Any, correct: Any, exit_costs: Any, weights: Any,
    lams: Any, last: int, passes: int,
) -> Any:  # fmt: skip
    """Coordinate descent over "how many rows of the stage's ranking stop", for each price."""
    n_stages, n = scores.shape
    cuts = np.zeros((len(lams), n_stages), np.int64)
    rank = np.empty((n_stages, n), np.int64)
    for s in range(n_stages):
        for r in range(n):
            rank[s, order[s, r]] = r
    now = np.zeros(n_stages, np.int64)
    if last >= 0:
        now[last] = n
    onward = np.empty(n)
    for which in range(len(lams)):
        lam = lams[which]
        for _ in range(passes):
            changed = False
            # from the last stage back: each sees what its successors do with a row
            for i in range(n):
                onward[i] = weights[i] * (correct[n_stages, i] - lam * exit_costs[n_stages, i])
            for s in range(n_stages - 1, -1, -1):
                if s != last:
                    running = 0.0
                    best = 0.0
                    cut = 0
                    for r in range(n):
                        i = order[s, r]
                        if scores[s, i] == -np.inf:
                            break
                        reached = True
                        for before in range(s):
                            if rank[before, i] < now[before]:
                                reached = False
                                break
                        if reached:
                            here = weights[i] * (correct[s, i] - lam * exit_costs[s, i])
                            running += here - onward[i]
                        tied = r + 1 < n and scores[s, order[s, r + 1]] == scores[s, i]
                        if not tied and running > best + 1e-9:
                            best = running
                            cut = r + 1
                    if cut != now[s]:
                        changed = True
                        now[s] = cut
                for i in range(n):
                    if rank[s, i] < now[s]:
                        onward[i] = weights[i] * (correct[s, i] - lam * exit_costs[s, i])
            if not changed:
                break
        for s in range(n_stages):
            cuts[which, s] = now[s]
    return cuts
