"""Thresholds of a cascade's stages, by exact-cost coordinate descent along the frontier.

For a price ``price`` of one unit of cost, the thresholds maximise on validation rows

    accuracy - price * mean cost.

While all other thresholds are fixed, the best value of one threshold is found exactly. The rows
that reach its stage are sorted by score, and the gain of stopping at or above each cut is a running
sum. Passes over the stages repeat until nothing changes.

Two measures keep the thresholds from fitting noise. First, a stage's answer counts as right with
the frequency at its score (an isotonic fit) instead of 0 or 1. Second, the optimism of tuning is
subtracted from a setting's figures. The optimism is the gap between the figures on the four fifths
of the rows that tuned the setting and on the unseen fifth.

Cuts lie midway between neighbouring distinct scores (:func:`gatewise.decision.midpoint_threshold`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numba
import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from gatewise.decision import ALWAYS_STOP, midpoint_threshold
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.cascade_record import CascadeRecord

#: Number of folds that measure the optimism of tuning.
N_FOLDS = 5

#: Step between cross-fitted prices. The rest are interpolated, because optimism changes slowly.
CROSS_FIT_STEP = 5

#: Largest ratio of the highest to the lowest price, for costs that differ by many powers of ten.
MAX_PRICE_RATIO = 1e7

#: Smallest number of rows for each candidate threshold, of which at least two are tried; more
#: candidates would overfit.
MIN_ROWS_PER_THRESHOLD = 20


def tune_thresholds(
    record: CascadeRecord, prices: NDArray[np.float64], *, max_passes: int = 6
) -> list[tuple[float | None, ...]]:
    """Find thresholds of high gain for each price in `prices`, from the highest to the lowest.

    The descent ends in a local optimum that depends on its start. It therefore runs through the
    prices twice, once from the highest and once from the lowest. Each price starts from the
    thresholds of the price before it. For each price, the better of both results is returned.
    """
    # rank the rows of each stage
    scores = np.where(np.isnan(record.scores), -np.inf, record.scores).astype(np.float32, "C")
    order = np.argsort(-scores, axis=1, kind="stable")
    last_stage = -1 if record.can_offload else record.n_stages - 1
    # one cost per row, so that the compiled kernel handles both shapes
    costs = record.exit_costs.reshape(record.n_stages + 1, -1)
    costs = np.broadcast_to(costs, record.correctness.shape).copy()
    correctness = record.correctness
    if record.class_weights is not None:  # class weights apply only to right answers
        correctness = correctness * record.scaled_class_weights
    ranked_scores = np.take_along_axis(scores, order, axis=1)
    ranked_rows = _RankedRows(ranked_scores, order, correctness, costs, record.weights)
    falling_prices = np.sort(np.asarray(prices, np.float64))[::-1].copy()
    falling_counts, falling_gains = _descend(ranked_rows, falling_prices, last_stage, max_passes)
    rising_counts, rising_gains = _descend(
        ranked_rows, falling_prices[::-1].copy(), last_stage, max_passes
    )
    is_rising_better = rising_gains[::-1] > falling_gains + 1e-9  # beyond rounding
    stop_counts = np.where(is_rising_better[:, None], rising_counts[::-1], falling_counts)
    return [
        tuple(
            _find_threshold(scores[stage], order[stage], int(count))
            for stage, count in enumerate(counts)
        )
        for counts in stop_counts
    ]


def frontier_points(
    record: CascadeRecord,
    *,
    chain: int = 0,
    n_prices: int = 150,
    n_thresholds: int = 40,
    seed: int = 0,
    extra_class_weights: Sequence[NDArray[np.float64]] = (),
) -> list[OperatingPoint]:
    """List operating points of a candidate cascade along its whole frontier, unsorted.

    Settings are tuned for `n_prices` prices of cost, from nearly free to prohibitive, and have
    cross-fitted figures. Simple settings with at most one threshold need no cross-fitting. They are
    each stage alone, each stage before the cloud with thresholds at up to `n_thresholds` evenly
    spaced ranks of its distinct scores, and the cloud for all rows. With them the cascade is at
    least as good as its parts.

    `chain` is the number of the cascade in the points. `extra_class_weights` are class weights,
    (n_classes,) each, for additional tuning. The points are measured without these weights.
    """
    # settings that are tuned jointly
    points = _tune_points(record, record, chain, n_prices, seed) if record.n_stages > 1 else []
    for weights in (
        extra_class_weights if record.n_stages > 1 and record.exit_answers is not None else ()
    ):
        assert record.exit_answers is not None
        class_weights = 1.0 if record.class_weights is None else record.class_weights
        reweighted = replace(
            record, class_weights=class_weights * weights[record.exit_answers.truth]
        )
        points += _tune_points(record, reweighted, chain, n_prices, seed)
    # simple settings, with at most one threshold
    settings: dict[tuple[float | None, ...], None] = {}
    for stage in range(record.n_stages):
        thresholds = (
            _list_spaced_thresholds(record.scores[stage], n_thresholds)
            if record.can_offload
            else []
        )
        for threshold in [ALWAYS_STOP, *thresholds]:
            setting: list[float | None] = [None] * record.n_stages
            setting[stage] = threshold
            settings[tuple(setting)] = None
    if record.can_offload:
        settings[(None,) * record.n_stages] = None
    return points + [record.measure(setting, chain) for setting in settings]


def _tune_points(
    record: CascadeRecord, tuning_record: CascadeRecord, chain: int, n_prices: int, seed: int
) -> list[OperatingPoint]:
    """Tune settings on `tuning_record`, measure them on `record`, and subtract the optimism."""
    smoothed_record = with_smoothed_answers(tuning_record)
    prices = space_prices(smoothed_record, n_prices)
    crossfit_indices = np.unique(np.append(np.arange(0, n_prices, CROSS_FIT_STEP), n_prices - 1))
    optimism = np.zeros((3, len(crossfit_indices)))  # of cost, accuracy and weighted accuracy
    # cross-fitted optimism, the difference between the figures on the fit rows and the unseen fifth
    folds = record.splitter.folds(None, N_FOLDS, seed)
    for fit_rows, unseen_rows in folds:
        fit_record = record.take(fit_rows)
        unseen_record = record.take(unseen_rows)
        settings = tune_thresholds(
            with_smoothed_answers(tuning_record.take(fit_rows)), prices[crossfit_indices]
        )
        gaps_of_setting = {}
        for setting in set(settings):  # neighbouring prices often have the same setting
            fit_point = fit_record.measure(setting)
            unseen_point = unseen_record.measure(setting)
            gaps_of_setting[setting] = (
                unseen_point.cost - fit_point.cost,
                fit_point.accuracy - unseen_point.accuracy,
                fit_point.effective_accuracy - unseen_point.effective_accuracy,
            )
        optimism += np.array([gaps_of_setting[setting] for setting in settings]).T / len(folds)
    if not folds:
        return []
    cost_optimism, accuracy_optimism, weighted_optimism = (
        np.maximum(np.interp(np.arange(n_prices), crossfit_indices, gaps), 0.0) for gaps in optimism
    )
    # figures at all prices minus the interpolated optimism
    points: dict[tuple[float | None, ...], OperatingPoint] = {}
    for index, setting in enumerate(tune_thresholds(smoothed_record, prices)):
        if setting in points:
            continue
        point = record.measure(setting, chain)
        corrected_point = msgspec.structs.replace(
            point,
            cost=point.cost + float(cost_optimism[index]),
            accuracy=point.accuracy - float(accuracy_optimism[index]),
        )
        if point.weighted_accuracy is not None:
            weighted_accuracy = point.weighted_accuracy - float(weighted_optimism[index])
            corrected_point = msgspec.structs.replace(
                corrected_point, weighted_accuracy=weighted_accuracy
            )
        points[setting] = corrected_point
    return list(points.values())


def space_prices(record: CascadeRecord, n_prices: int) -> NDArray[np.float64]:
    """Space prices of cost geometrically, from a prohibitive one down to nearly none.

    At the highest price, no row gains as much by leaving the cheapest exit as it costs. The lowest
    price is worth an accuracy of .003 at the costliest exit.
    """
    costs = record.exit_costs.reshape(record.n_stages + 1, -1)
    cheapest_exit = int(costs.mean(axis=1).argmin())
    gains = record.correctness - record.correctness[cheapest_exit]
    gains *= record.scaled_class_weights
    rises = np.broadcast_to(costs - costs[cheapest_exit], gains.shape)
    costs_more = rises > 0
    prohibitive_price = np.max(gains[costs_more] / rises[costs_more], initial=0.0)
    lowest_price = 3e-3 / max(float(costs.max()), 1e-12)
    highest_price = np.clip(prohibitive_price, 10 * lowest_price, MAX_PRICE_RATIO * lowest_price)
    return np.geomspace(highest_price, lowest_price, n_prices)


def with_smoothed_answers(record: CascadeRecord) -> CascadeRecord:
    """Replace each stage's `correctness` by the frequency of 1 at each score (an isotonic fit)."""
    correctness = record.correctness.copy()
    for stage in range(record.n_stages):
        has_score = ~np.isnan(record.scores[stage])
        if has_score.any():
            isotonic = IsotonicRegression(out_of_bounds="clip")
            isotonic.fit(
                record.scores[stage, has_score],
                correctness[stage, has_score],
                record.answer_weights[has_score],
            )
            correctness[stage, has_score] = isotonic.predict(record.scores[stage, has_score])
    return replace(record, correctness=correctness)


def _list_spaced_thresholds(scores: NDArray[np.float32], n_thresholds: int) -> list[float]:
    """List thresholds at evenly spaced ranks of a stage's distinct scores."""
    n_thresholds = max(2, min(n_thresholds, len(scores) // MIN_ROWS_PER_THRESHOLD))
    distinct_scores = np.unique(scores[~np.isnan(scores)])
    if len(distinct_scores) < 2:
        return []
    indices = np.unique(np.linspace(0, len(distinct_scores) - 2, n_thresholds).astype(int))
    return [
        midpoint_threshold(float(distinct_scores[index]), float(distinct_scores[index + 1]))
        for index in indices
    ]


def _find_threshold(
    scores: NDArray[np.float32], order: NDArray[np.intp], n_stopping: int
) -> float | None:
    """Get the threshold at which the first `n_stopping` rows of `order` stop."""
    if n_stopping == 0:
        return None
    if n_stopping >= len(order):
        return ALWAYS_STOP
    lower_score = float(scores[order[n_stopping]])
    higher_score = float(scores[order[n_stopping - 1]])
    return (
        higher_score if np.isneginf(lower_score) else midpoint_threshold(lower_score, higher_score)
    )


class _RankedRows(NamedTuple):
    """Labelled rows with their ranking by each stage's score."""

    ranked_scores: NDArray[np.float32]  # (n_stages, n), falling; -inf never stops
    order: NDArray[np.intp]  # (n_stages, n): rows by falling score
    correctness: NDArray[np.float64]  # (n_stages + 1, n)
    exit_costs: NDArray[np.float64]  # (n_stages + 1, n)
    weights: NDArray[np.float64]  # (n,)


@numba.njit(cache=True, nogil=True)
def _descend(
    rows: _RankedRows, prices: NDArray[np.float64], last_stage: int, max_passes: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find how many of the top-ranked rows stop at each stage, for each price in `prices`.

    All rows that reach `last_stage` stop there. It is -1 if the remaining rows are offloaded.
    Returns the numbers, (n_prices, n_stages), and the sum over the rows of
    weight * (correctness - price * cost) at these numbers, (n_prices,).
    """
    ranked_scores, order, correctness, exit_costs, weights = rows
    n_stages, n = ranked_scores.shape
    stop_counts = np.zeros((len(prices), n_stages), np.int64)  # numbers of stopping rows
    gains = np.zeros(len(prices))
    rank = np.empty((n_stages, n), np.int64)
    for stage in range(n_stages):
        for position in range(n):
            rank[stage, order[stage, position]] = position
    n_stopping = np.zeros(n_stages, np.int64)
    if last_stage >= 0:
        n_stopping[last_stage] = n
    exit_gain = np.empty((n_stages + 1, n))
    continue_gain = np.empty(n)
    stop_gain = np.empty(n)  # gain of stopping over continuing, of the rows that reach a stage
    # each price starts from the thresholds of the price before
    for price_index in range(len(prices)):
        for exit_number in range(n_stages + 1):
            for row in range(n):
                exit_gain[exit_number, row] = weights[row] * (
                    correctness[exit_number, row]
                    - prices[price_index] * exit_costs[exit_number, row]
                )
        for _ in range(max_passes):
            has_changed = False
            # from the last stage to the first, because a stage needs the gains of later stages
            continue_gain[:] = exit_gain[n_stages]
            for stage in range(n_stages - 1, -1, -1):
                if stage != last_stage:
                    for row in range(n):
                        stop_gain[row] = exit_gain[stage, row] - continue_gain[row]
                    for earlier_stage in range(stage):
                        for row in range(n):
                            if rank[earlier_stage, row] < n_stopping[earlier_stage]:
                                stop_gain[row] = 0.0
                    best_count = _find_best_count(ranked_scores[stage], order[stage], stop_gain)
                    if best_count != n_stopping[stage]:
                        has_changed = True
                        n_stopping[stage] = best_count
                for row in range(n):
                    if rank[stage, row] < n_stopping[stage]:
                        continue_gain[row] = exit_gain[stage, row]
            if not has_changed:
                break
        for stage in range(n_stages):
            stop_counts[price_index, stage] = n_stopping[stage]
        gains[price_index] = continue_gain.sum()
    return stop_counts, gains


@numba.njit(cache=True, nogil=True)
def _find_best_count(
    ranked_scores: NDArray[np.float32], order: NDArray[np.intp], stop_gain: NDArray[np.float64]
) -> int:
    """Find how many of the top-ranked rows should stop at a stage, given all other stages.

    `order`, (n,), are the rows by falling score, and `ranked_scores`, (n,), their scores.
    `stop_gain`, (n,), is what each row gains by stopping, and 0 if it does not reach the stage.
    """
    n = len(order)
    gain_so_far = 0.0
    best_gain = 0.0
    best_count = 0
    for position in range(n):
        score = ranked_scores[position]
        if score == -np.inf:
            break
        gain_so_far += stop_gain[order[position]]
        is_tied = position + 1 < n and ranked_scores[position + 1] == score
        # rounding must not move a threshold, or passes would not end
        if not is_tied and gain_so_far > best_gain + 1e-9:
            best_gain = gain_so_far
            best_count = position + 1
    return best_count
