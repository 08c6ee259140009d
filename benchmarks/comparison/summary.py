"""Figures of the comparison: cuts within 1 % of the top accuracy, accuracy at budgets, and wins.

One rule chooses the points of all methods on validation rows; test rows are only reported. A
method without a sufficiently accurate point falls back to the top method for every instance at the
full price. Its cut and loss are then 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.comparison.record import BYTE_BOUNDS, Point
from benchmarks.data.problems import Problem

#: Accepted loss of accuracy, 1 % absolute.
MAX_LOSS = 0.01

#: Validation accuracy that the rule "with slack" requires in addition, because a point that is
#: chosen on validation rows is less accurate on other rows.
SLACK = 0.002

#: Mean accuracies with at most this difference count as equal.
MIN_DIFFERENCE = 0.001

#: Largest p-value, after Holm's correction, of a significant difference.
SIGNIFICANCE_LEVEL = 0.05

#: Results of a problem by method: the records of its cells, sorted by seed.
Results = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class _Fold:
    """Points of a method on one fold, as the record of a cell has them."""

    n_test: int
    points: tuple[Point, ...]
    own_point: Point | None  # the point that the method itself chooses

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> _Fold:
        points = tuple(Point(*row) for row in record["points"])
        return cls(record["n_test"], points, Point(*record["own"]) if record["own"] else None)

    def within(self, nbytes: int) -> _Fold:
        """Return the fold with only the points that take at most `nbytes`."""
        return replace(self, points=tuple(point for point in self.points if point.nbytes <= nbytes))

    @property
    def best_point(self) -> Point:
        """Cheapest point among those with the highest validation accuracy."""
        return max(self.points, key=lambda point: (point.val_accuracy, -point.val_cost))


#: Folds of a method by seed.
FoldsBySeed = Sequence[Sequence[_Fold]]
#: Chooses a point of a fold; the second argument is the fold of the top method.
Rule = Callable[[_Fold, _Fold], Point | None]


def pick_budget(points: Iterable[Point], budget: float) -> Point:
    """Pick the point with the highest validation accuracy and a validation cost in the budget."""
    # 1e-9, because sums of the same prices in another order differ by rounding
    affordable_points = [point for point in points if point.val_cost <= budget + 1e-9]
    return max(affordable_points, key=lambda point: (point.val_accuracy, -point.val_cost))


def pick_floor(points: Iterable[Point], min_accuracy: float) -> Point | None:
    """Pick the cheapest point on validation rows that reaches `min_accuracy` there."""
    accurate_points = [point for point in points if point.val_accuracy >= min_accuracy - 1e-12]
    return min(
        accurate_points, key=lambda point: (point.val_cost, -point.val_accuracy), default=None
    )


def summarise(problem: Problem, results: Results) -> dict[str, Any]:
    """Compute means and standard errors over seeds for all methods, with pooled folds."""
    folds_of_method = {
        method: [[_Fold.from_record(fold) for fold in cell["folds"]] for cell in cells]
        for method, cells in results.items()
    }
    bounded_methods = {f"{method}-{bound}" for method in folds_of_method for bound in BYTE_BOUNDS}
    # exclude bounded fits: they choose shapes on validation rows, so their accuracy is optimistic
    top_method = _find_top_method(
        {
            method: folds_by_seed
            for method, folds_by_seed in folds_of_method.items()
            if method not in bounded_methods
        }
    )
    top_folds_by_seed = folds_of_method[top_method]
    top_accuracy = max(
        float(np.mean(_pool_by_seed(folds_by_seed, lambda fold: fold.best_point.accuracy)))
        for folds_by_seed in folds_of_method.values()
    )
    return {
        "title": problem.title,
        "note": problem.note,
        "metric": problem.metric,
        "target": problem.target,
        "full_price": problem.costs.total,
        "top_method": top_method,
        "top_accuracy": top_accuracy,
        "budgets": problem.budgets().tolist(),
        "methods": {
            method: _summarise_method(
                problem, method, cells, folds_of_method, top_folds_by_seed, top_accuracy
            )
            for method, cells in results.items()
        },
        "top_accuracy_of_seeds": _pool_by_seed(
            top_folds_by_seed, lambda fold: fold.best_point.accuracy
        ),
    }


def _summarise_method(
    problem: Problem,
    method: str,
    cells: Sequence[Mapping[str, Any]],
    folds_of_method: Mapping[str, FoldsBySeed],
    top_folds_by_seed: FoldsBySeed,
    top_accuracy: float,
) -> dict[str, Any]:
    """Compute the figures of a method; within a bound of bytes, of its fit for this bound."""
    folds_by_seed = folds_of_method[method]
    rules: dict[str, Rule] = {
        "within_1": _make_loss_rule(),
        "within_1_slack": _make_loss_rule(slack=SLACK),
    }
    if all(fold.own_point for folds in folds_by_seed for fold in folds):
        rules["own_choice"] = lambda fold, _top: fold.own_point
    pairs = _pair_with_top_folds(folds_by_seed, top_folds_by_seed)
    bounded_figures: dict[str, Any] = {}
    for name, bound in BYTE_BOUNDS.items():
        bounded_fits = folds_of_method.get(f"{method}-{name}", [])
        bounded_fits = bounded_fits if len(bounded_fits) == len(folds_by_seed) else folds_by_seed
        small_folds = [[fold.within(bound) for fold in folds] for folds in bounded_fits]
        bounded_figures[f"within_1_{bound // 1024}_kb"] = _apply_rule(
            problem,
            _pair_with_top_folds(small_folds, top_folds_by_seed),
            _make_loss_rule(),
            top_accuracy,
        )
        bounded_figures[f"at_budgets_{bound // 1024}_kb"] = _measure_at_budgets(
            problem, small_folds
        )
    return {
        "seeds": [cell["seed"] for cell in cells],
        "code": sorted({cell["code"] for cell in cells}),
        "best_accuracy": _mean_and_error(
            _pool_by_seed(folds_by_seed, lambda fold: fold.best_point.accuracy)
        ),
        "best_val_accuracy": _mean_and_error(
            _pool_by_seed(folds_by_seed, lambda fold: fold.best_point.val_accuracy)
        ),
        "fit_seconds": _mean_and_error(
            [sum(fold["seconds"] for fold in cell["folds"]) for cell in cells]
        ),
        **{name: _apply_rule(problem, pairs, rule, top_accuracy) for name, rule in rules.items()},
        "at_budgets": _measure_at_budgets(problem, folds_by_seed),
        **bounded_figures,
        "about": cells[0]["folds"][0]["about"],
    }


def _make_loss_rule(*, slack: float = 0.0) -> Rule:
    """Make the rule that picks the cheapest point within :data:`MAX_LOSS` of the top method."""

    def rule(fold: _Fold, top: _Fold) -> Point | None:
        return pick_floor(fold.points, top.best_point.val_accuracy - MAX_LOSS + slack)

    return rule


def _apply_rule(
    problem: Problem,
    pairs: Sequence[tuple[Sequence[_Fold], Sequence[_Fold]]],
    rule: Rule,
    top_accuracy: float,
) -> dict[str, Any]:
    """Apply a rule to every fold of every seed, with the folds of the top method."""
    full_price = problem.costs.total
    means_by_seed = []
    for folds, top_folds in pairs:
        chosen_points = [rule(fold, top) for fold, top in zip(folds, top_folds, strict=True)]
        points = [
            point or Point(0, 0, top.best_point.accuracy, full_price, offload_rate=1.0)
            for point, top in zip(chosen_points, top_folds, strict=True)
        ]
        means = {
            name: _average_folds([getattr(point, name) for point in points], folds)
            for name in ("cost", "accuracy", "offload_rate", "nbytes")
        }
        means_by_seed.append(
            {
                "cut": 1 - means["cost"] / full_price,
                "loss": top_accuracy - means["accuracy"],
                "offload_rate": means["offload_rate"],
                "nbytes": means["nbytes"],
                "reached": _average_folds([point is not None for point in chosen_points], folds),
            }
        )
    return {key: _mean_and_error([row[key] for row in means_by_seed]) for key in means_by_seed[0]}


def _measure_at_budgets(problem: Problem, folds_by_seed: FoldsBySeed) -> list[dict[str, Any]]:
    """Measure accuracy and cost at each budget of a problem."""
    rows = []
    for budget in problem.budgets():
        accuracies, costs = [], []
        for folds in folds_by_seed:
            points = [pick_budget(fold.points, budget) for fold in folds]
            accuracies.append(_average_folds([point.accuracy for point in points], folds))
            costs.append(_average_folds([point.cost for point in points], folds))
        rows.append(
            {
                "accuracy": _mean_and_error(accuracies),
                "cost": _mean_and_error(costs),
                "of_seeds": accuracies,
            }
        )
    return rows


def compare(
    summary: Mapping[str, Any],
    our_method: str,
    n_test: int,
    *,
    accuracies: str = "at_budgets",
) -> dict[str, Any]:
    """Compare a method with every peer at every budget by paired differences over seeds.

    Each budget and peer has a t-test, and Holm's correction applies to all of them. The standard
    deviation is at least half a test row (half a test query for a ranking), because the seed does
    not change some models. Wins, ties and losses are counted for ``significant`` differences and
    for ``plain`` ones, in which the means differ by more than 0.1 %.
    """
    our_figures = summary["methods"][our_method]
    bounded_methods = [f"{our_method}-{bound}" for bound in BYTE_BOUNDS]
    peers = [
        method for method in summary["methods"] if method not in (our_method, *bounded_methods)
    ]
    gaps: dict[str, list[float]] = {}
    p_values: list[float] = []
    for peer in peers:
        seed_gaps = [
            ours - theirs
            for ours, theirs in paired_accuracies(our_figures, summary["methods"][peer], accuracies)
        ]
        gaps[peer] = [float(gap.mean()) if len(gap) else 0.0 for gap in seed_gaps]
        p_values += [_compute_p_value(gap, n_test) for gap in seed_gaps]
    adjusted_p_values = iter(holm(p_values))
    comparison = {}
    for peer in peers:
        peer_p_values = [next(adjusted_p_values) for _ in gaps[peer]]
        significant_signs = [
            (gap > 0) - (gap < 0) if p_value < SIGNIFICANCE_LEVEL else 0
            for gap, p_value in zip(gaps[peer], peer_p_values, strict=True)
        ]
        plain_signs = [(gap > MIN_DIFFERENCE) - (gap < -MIN_DIFFERENCE) for gap in gaps[peer]]
        comparison[peer] = {
            "difference": gaps[peer],
            "p_holm": peer_p_values,
            "significant": _count_signs(significant_signs),
            "plain": _count_signs(plain_signs),
        }
    return comparison


def paired_accuracies(
    our_figures: Mapping[str, Any], their_figures: Mapping[str, Any], key: str = "at_budgets"
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield accuracies of two methods at each budget, for the seeds that both have."""
    seeds = [seed for seed in our_figures["seeds"] if seed in their_figures["seeds"]]
    for cells in zip(our_figures[key], their_figures[key], strict=True):
        ours, theirs = (
            np.array([cell["of_seeds"][figures["seeds"].index(seed)] for seed in seeds])
            for cell, figures in zip(cells, (our_figures, their_figures), strict=True)
        )
        yield ours, theirs


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down rule.

    The i-th smallest of n p-values becomes the maximum of min(1, (n - j + 1) p_j) over j <= i.
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    running_maxima = np.maximum.accumulate(np.array(p_values)[order] * factors)
    adjusted_p_values = np.empty(len(p_values))
    adjusted_p_values[order] = np.minimum(running_maxima, 1.0)
    return [float(p_value) for p_value in adjusted_p_values]


def _compute_p_value(gaps: NDArray[np.float64], n_test: int) -> float:
    if len(gaps) < 2 or not gaps.any():
        return 1.0
    # two-sided test of t = |mean gap| / (standard deviation / sqrt(n)); see `compare` for the floor
    error = max(float(gaps.std(ddof=1)), 0.5 / n_test) / len(gaps) ** 0.5
    return float(2 * stats.t.sf(abs(gaps.mean()) / error, len(gaps) - 1))


def _count_signs(signs: Sequence[int]) -> dict[str, int]:
    return {"wins": signs.count(1), "ties": signs.count(0), "losses": signs.count(-1)}


def _find_top_method(folds_of_method: Mapping[str, FoldsBySeed]) -> str:
    """Find the method whose best points have the highest mean validation accuracy."""
    means = {
        method: np.mean(_pool_by_seed(folds_by_seed, lambda fold: fold.best_point.val_accuracy))
        for method, folds_by_seed in folds_of_method.items()
    }
    return max(means, key=lambda method: float(means[method]))


def _pair_with_top_folds(
    folds_by_seed: FoldsBySeed, top_folds_by_seed: FoldsBySeed
) -> list[tuple[Sequence[_Fold], Sequence[_Fold]]]:
    """Pair the folds of each seed with those of the top method, whose seeds repeat."""
    return [
        (folds, top_folds_by_seed[seed_number % len(top_folds_by_seed)])
        for seed_number, folds in enumerate(folds_by_seed)
    ]


def _pool_by_seed(folds_by_seed: FoldsBySeed, figure: Callable[[_Fold], float]) -> list[float]:
    """Average a figure over the folds of each seed."""
    return [_average_folds([figure(fold) for fold in folds], folds) for folds in folds_by_seed]


def _average_folds(values: Sequence[float], folds: Sequence[_Fold]) -> float:
    """Compute a mean over folds, weighted by their numbers of test rows."""
    return float(np.average(values, weights=[fold.n_test for fold in folds]))


def _mean_and_error(values: Sequence[float]) -> dict[str, float | None]:
    """Compute mean and standard error over seeds; the error is None for one seed."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "error": error}
