"""Figures of the comparison: cuts within 1 % of the top accuracy, accuracy at budgets, and wins.

The same rule chooses the points of every method on validation rows; test rows are only reported. A
method without a sufficiently accurate point falls back to the top method for every instance at the
full price. Its cut and loss are then 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.comparison.record import BYTE_BOUNDS, Point
from benchmarks.data.problems import Problem

ALLOWED = 0.01
"""Accepted loss of accuracy, 1 % absolute."""

SLACK = 0.002
"""Reserve of validation accuracy in the rule "with slack"."""

FLAT = 0.001
"""Mean accuracies with at most this difference count as equal."""

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Cells of a problem by method, one per seed, sorted by seed."""


@dataclass(frozen=True)
class _Fold:
    n_test: int
    points: tuple[Point, ...]
    own: Point | None

    @classmethod
    def of(cls, fold: Mapping[str, Any]) -> _Fold:
        points = tuple(Point(*row) for row in fold["points"])
        return cls(fold["n_test"], points, Point(*fold["own"]) if fold["own"] else None)

    def within(self, nbytes: int) -> _Fold:
        """Fold with only the points that take at most `nbytes`."""
        return replace(self, points=tuple(p for p in self.points if p.nbytes <= nbytes))

    @property
    def best(self) -> Point:
        """Cheapest point among those with the highest validation accuracy."""
        return max(self.points, key=lambda p: (p.val_accuracy, -p.val_cost))


Rule = Callable[[_Fold, _Fold], Point | None]
"""Chooses a point of a fold; the second argument is the fold of the top method."""


def pick_budget(points: Iterable[Point], budget: float) -> Point:
    """Point with the highest validation accuracy whose validation cost is within the budget."""
    inside = [p for p in points if p.val_cost <= budget + 1e-9]
    return max(inside, key=lambda p: (p.val_accuracy, -p.val_cost))


def pick_floor(points: Iterable[Point], floor: float) -> Point | None:
    """Point with the lowest validation cost whose validation accuracy is at least `floor`."""
    good = [p for p in points if p.val_accuracy >= floor - 1e-12]
    return min(good, key=lambda p: (p.val_cost, -p.val_accuracy)) if good else None


def summarise(problem: Problem, results: Results) -> dict[str, Any]:
    """Means and standard errors over seeds for all methods of a problem, with pooled folds."""
    folds = {m: [[_Fold.of(f) for f in c["folds"]] for c in cells] for m, cells in results.items()}
    bounded = {f"{method}-{bound}" for method in folds for bound in BYTE_BOUNDS}
    # exclude bounded fits: they choose shapes on validation rows, so their accuracy is optimistic
    top = _top_method({m: seeds for m, seeds in folds.items() if m not in bounded})
    references = folds[top]
    tops = [_pooled(seed, lambda f: f.best.accuracy) for seed in references]
    best = {
        m: float(np.mean([_pooled(seed, lambda f: f.best.accuracy) for seed in seeds]))
        for m, seeds in folds.items()
    }
    top_accuracy = max(best.values())
    out: dict[str, Any] = {
        "title": problem.title,
        "note": problem.note,
        "metric": problem.metric,
        "target": problem.target,
        "full_price": problem.costs.total,
        "top_method": top,
        "top_accuracy": top_accuracy,
        "budgets": problem.budgets().tolist(),
        "methods": {},
    }
    for method, seeds in folds.items():
        pairs = list(zip(seeds, _cycled(references, len(seeds)), strict=True))
        rules: dict[str, Rule] = {"within_1": _within(), "within_1_slack": _within(slack=SLACK)}
        if all(f.own for seed in seeds for f in seed):
            rules["own_choice"] = lambda f, _top: f.own
        cells = results[method]
        bounded_figures: dict[str, Any] = {}
        for name, bound in BYTE_BOUNDS.items():
            fitted = folds.get(f"{method}-{name}", [])
            fitted = fitted if len(fitted) == len(seeds) else seeds
            small = [[f.within(bound) for f in seed] for seed in fitted]
            with_tops = list(zip(small, _cycled(references, len(small)), strict=True))
            bounded_figures[f"within_1_{bound // 1024}_kb"] = _rule(
                problem, with_tops, _within(), top_accuracy
            )
            bounded_figures[f"at_budgets_{bound // 1024}_kb"] = _at_budgets(problem, small)
        out["methods"][method] = {
            "seeds": [c["seed"] for c in cells],
            "code": sorted({c["code"] for c in cells}),
            "best_accuracy": _mean([_pooled(s, lambda f: f.best.accuracy) for s in seeds]),
            "best_val_accuracy": _mean([_pooled(s, lambda f: f.best.val_accuracy) for s in seeds]),
            "fit_seconds": _mean([sum(f["seconds"] for f in c["folds"]) for c in cells]),
            **{name: _rule(problem, pairs, rule, top_accuracy) for name, rule in rules.items()},
            "at_budgets": _at_budgets(problem, seeds),
            **bounded_figures,
            "about": cells[0]["folds"][0]["about"],
        }
    out["top_accuracy_of_seeds"] = tops
    return out


def _within(*, slack: float = 0.0) -> Rule:
    def rule(fold: _Fold, top: _Fold) -> Point | None:
        return pick_floor(fold.points, top.best.val_accuracy - ALLOWED + slack)

    return rule


def _rule(
    problem: Problem,
    pairs: Sequence[tuple[Sequence[_Fold], Sequence[_Fold]]],
    rule: Rule,
    top_accuracy: float,
) -> dict[str, Any]:
    """Apply a rule to every fold of every seed, with the folds of the top method."""
    rows = []
    for seed, reference in pairs:
        budgets = [rule(f, t) for f, t in zip(seed, reference, strict=True)]
        fallen = [
            p
            or Point(
                val_accuracy=0,
                val_cost=0,
                accuracy=t.best.accuracy,
                cost=problem.costs.total,
                cost_paper=problem.costs.total,
                offload_rate=1.0,
            )
            for p, t in zip(budgets, reference, strict=True)
        ]
        weights = [f.n_test for f in seed]
        rows.append(
            {
                "cut": 1 - _weighted([p.cost for p in fallen], weights) / problem.costs.total,
                "cut_paper": 1
                - _weighted([p.cost_paper for p in fallen], weights) / problem.costs.total,
                "loss": top_accuracy - _weighted([p.accuracy for p in fallen], weights),
                "offload_rate": _weighted([p.offload_rate for p in fallen], weights),
                "nbytes": _weighted([p.nbytes for p in fallen], weights),
                "reached": _weighted([p is not None for p in budgets], weights),
            }
        )
    return {key: _mean([row[key] for row in rows]) for key in rows[0]}


def _at_budgets(problem: Problem, seeds: Sequence[Sequence[_Fold]]) -> list[dict[str, Any]]:
    out = []
    for budget in problem.budgets():
        picks = [[pick_budget(f.points, budget) for f in seed] for seed in seeds]
        weights = [[f.n_test for f in seed] for seed in seeds]
        accuracy = [
            _weighted([p.accuracy for p in s], w) for s, w in zip(picks, weights, strict=True)
        ]
        cost = [_weighted([p.cost for p in s], w) for s, w in zip(picks, weights, strict=True)]
        out.append({"accuracy": _mean(accuracy), "cost": _mean(cost), "of_seeds": accuracy})
    return out


def compare(
    summary: Mapping[str, Any],
    ours: str,
    n_test: int,
    level: float = 0.05,
    *,
    accuracies: str = "at_budgets",
) -> dict[str, Any]:
    """Compare a method with every peer at every budget by paired differences over seeds.

    Each budget and peer has a t-test, and Holm's correction applies to all of them. The standard
    deviation is at least half a test row (half a test query for a ranking), because the seed does
    not change some models. Wins, ties and losses are counted for ``significant`` differences and
    for ``plain`` ones, in which the means differ by more than 0.1 %.
    """
    mine = summary["methods"][ours]
    peers = [
        m for m in summary["methods"] if m not in (ours, *(f"{ours}-{b}" for b in BYTE_BOUNDS))
    ]
    gaps: dict[str, list[float]] = {}
    raw: list[float] = []
    for peer in peers:
        theirs = summary["methods"][peer]
        shared = [s for s in mine["seeds"] if s in theirs["seeds"]]
        gaps[peer] = []
        for a, b in zip(mine[accuracies], theirs[accuracies], strict=True):
            gap = np.array(
                [
                    a["of_seeds"][mine["seeds"].index(s)] - b["of_seeds"][theirs["seeds"].index(s)]
                    for s in shared
                ]
            )
            gaps[peer].append(float(gap.mean()) if len(gap) else 0.0)
            raw.append(_p_value(gap, n_test))
    adjusted = iter(holm(raw))
    out = {}
    for peer in peers:
        p = [next(adjusted) for _ in gaps[peer]]
        significant = [
            (g > 0) - (g < 0) if q < level else 0 for g, q in zip(gaps[peer], p, strict=True)
        ]
        plain = [(g > FLAT) - (g < -FLAT) for g in gaps[peer]]
        out[peer] = {
            "difference": gaps[peer],
            "p_holm": p,
            "significant": _counts(significant),
            "plain": _counts(plain),
        }
    return out


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down rule."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    stepped = np.maximum.accumulate(np.array(p_values)[order] * factors)
    out = np.empty(len(p_values))
    out[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in out]


def _p_value(gap: np.ndarray[Any, Any], n_test: int) -> float:
    if len(gap) < 2 or not gap.any():
        return 1.0
    error = max(float(gap.std(ddof=1)), 0.5 / n_test) / len(gap) ** 0.5
    return float(2 * stats.t.sf(abs(gap.mean()) / error, len(gap) - 1))


def _counts(signs: Sequence[int]) -> dict[str, int]:
    return {"wins": signs.count(1), "ties": signs.count(0), "losses": signs.count(-1)}


def _top_method(folds: Mapping[str, Sequence[Sequence[_Fold]]]) -> str:
    """Method whose best points have the highest mean validation accuracy."""
    means = {
        m: np.mean([_pooled(seed, lambda f: f.best.val_accuracy) for seed in seeds])
        for m, seeds in folds.items()
    }
    return max(means, key=lambda m: float(means[m]))


def _cycled(seeds: Sequence[Any], n: int) -> list[Any]:
    return [seeds[i % len(seeds)] for i in range(n)]


def _pooled(seed: Sequence[_Fold], figure: Callable[[_Fold], float]) -> float:
    return _weighted([figure(f) for f in seed], [f.n_test for f in seed])


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(np.average(values, weights=weights))


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard error over seeds; the error is None for one seed."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "error": error}
