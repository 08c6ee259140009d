"""Branches: after a first stage, a cascade of its own for each kind of outcome, beside one chain.

    python -m benchmarks.bench_branches [--quick] [--only SET,...]

On sets with feature groups or prices, `StagedCascade` is fitted as usual; its first or second stage
then is the root of two branches. Rows are dealt to the branches by the root's margins (k-means, two
clusters, of the fitted rows' margins), and each branch is a `StagedCascade` of its own on its rows,
with the same high-cost model, in which the root's features are free; rows of the other branch have
a small weight there. At each budget the validation
rows choose: the operating points of the two branches that are best together, for a price of cost
common to both. Accuracy is that of test rows, at twelve budgets. A branch may stop at once, on the
root's features alone. Writes branches.json and branches.md into benchmarks/results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from gatewise.console import note, table
from gatewise.costs import FeatureCosts
from gatewise_training import StagedCascade

SETS = ("thyroid", "statlog_heart", "hapt-9", "mbne_tiny")
ROOTS, BRANCHES, BUDGETS, SEEDS = (0, 1), 2, 12, (0, 1, 2)
OTHERS = 0.02
"""Weight of the other branch's rows in a branch's fits."""
TRADES = np.geomspace(1e-6, 1e-1, 60)
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
HEADER = ("set", "root", "splits", "branches - chain", "chosen by validation - chain")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    options = harness.parser("bench_branches", __doc__, "one seed: only a look", SETS).parse_args(
        arguments
    )

    def action() -> int:
        chosen = harness.chosen_parts(options, SETS)
        seeds = SEEDS[:1] if options.quick else SEEDS
        found = {name: _measure(name, seeds) for name in chosen}
        rows = [_row(name, root, each) for name, by in found.items() for root, each in by.items()]
        table("Branches", HEADER, rows)
        result = {"settings": {"seeds": len(seeds), "budgets": BUDGETS}, "sets": found}
        whole = tuple(chosen) == SETS
        harness.write_results(
            harness.out_folder(options, whole=whole), "branches",
            result | harness.environment(PACKAGES), _page(rows),
        )  # fmt: skip
        return 0

    return harness.run_command(action)


def _measure(name: str, seeds: Sequence[int]) -> dict[str, list[list[list[float]]]]:
    """Test accuracy less the chain's at each budget, by root: two lists for each seed.

    The first is that of the branches, NaN at budgets that they have no point for; in the second
    validation rows choose between branches and chain. The folds of a seed are pooled.
    """
    problem = problems.get(name)
    gains: dict[str, list[list[list[float]]]] = {}
    for seed in seeds:
        pooled: dict[str, list[NDArray[np.float64]]] = {}
        for i, fold in enumerate(problem.deal(seed)):
            note(f"{name}, seed {seed}, fold {i + 1}")
            for root, found in _fold(_validated(fold, seed), problem, seed).items():
                pooled.setdefault(root, []).append(found)
        for root, each in pooled.items():
            gains.setdefault(root, []).append(np.mean(each, axis=0).tolist())
    return gains


def _validated(fold: Fold, seed: int) -> Fold:
    """The fold with validation rows: a third of the training rows where it has none."""
    if fold.validation is not None:
        return fold
    order = np.random.default_rng(seed).permutation(len(fold.train[1]))
    fit, validation = np.split(order, [2 * len(order) // 3])
    x, y = fold.train
    return replace(fold, train=(x[fit], y[fit]), validation=(x[validation], y[validation]))


def _fold(fold: Fold, problem: problems.Problem, seed: int) -> dict[str, NDArray[np.float64]]:
    assert fold.validation is not None
    f0 = ExtraTreesClassifier(300, random_state=seed, n_jobs=1).fit(*fold.train)
    chain = StagedCascade(f0, feature_costs=problem.costs, random_state=seed)
    chain.fit(*fold.train, validation=fold.validation)
    budgets = problem.budgets(BUDGETS)
    one = Together([chain], [fold.validation], [fold.test])
    alone = one.accuracies(budgets, 0.0)
    found = {}
    for r, root in enumerate(chain.stages_[: len(ROOTS)]):
        clusters = KMeans(BRANCHES, n_init=4, random_state=seed).fit(root.margins(fold.train[0]))
        dealt = [clusters.predict(root.margins(part[0])) for part in (fold.train, fold.validation)]
        to = clusters.predict(root.margins(fold.test[0]))
        free = _without(problem.costs, root.features)
        branches = []
        for b in range(BRANCHES):
            # rows of the other branch hardly count, but no class is missing
            weight = np.where(dealt[0] == b, 1.0, OTHERS)
            branch = StagedCascade(f0, feature_costs=free, random_state=seed)
            rows = tuple(values[dealt[1] == b] for values in fold.validation)
            branches.append(branch.fit(*fold.train, sample_weight=weight, validation=rows))
        parts = [
            [tuple(values[of == b] for values in part) for b in range(BRANCHES)]
            for part, of in ((fold.validation, dealt[1]), (fold.test, to))
        ]
        price = float(problem.costs.price(root.features))
        both = Together(branches, *parts).accuracies(budgets, price)
        better = np.nan_to_num(both[0], nan=-1.0) > alone[0]
        chosen = np.where(better, both[1], alone[1])
        found[f"stage {r + 1}"] = np.stack([both[1], chosen]) - alone[1]
    return found


@dataclass(frozen=True, eq=False)
class Together:
    """Cascades that each answer rows of their own; operating points are chosen for all at once."""

    systems: Sequence[Any]
    validation: Sequence[Any]
    test: Sequence[Any]

    def accuracies(self, budgets: NDArray[np.float64], price: float) -> NDArray[np.float64]:
        """Accuracy of validation and test rows at each budget, shape (2, n); NaN without a point.

        `price` is paid by every row before.
        """
        share = np.array([len(y) for _, y in self.validation], float)
        share /= share.sum()
        curves = [
            [(p.cost, p.accuracy) for p in system.frontier_.points] for system in self.systems
        ]
        settings = {}
        for trade in TRADES:
            best = tuple(
                max(range(len(c)), key=lambda i, c=c: c[i][1] - trade * c[i][0]) for c in curves
            )
            chosen = [curve[i] for curve, i in zip(curves, best, strict=True)]
            cost, accuracy = share @ np.array(chosen)
            settings[best] = (price + cost, accuracy, chosen)
        found: dict[Any, float] = {}
        accuracies = np.full((2, len(budgets)), np.nan)
        for i, budget in enumerate(budgets):
            within = [key for key, (cost, _, _) in settings.items() if cost <= budget]
            if within:
                key = max(within, key=lambda key: settings[key][1])
                if key not in found:
                    found[key] = self._score([cost for cost, _ in settings[key][2]])
                accuracies[:, i] = settings[key][1], found[key]
        return accuracies

    def _score(self, costs: Sequence[float]) -> float:
        right = rows = 0
        for system, cost, (x, y) in zip(self.systems, costs, self.test, strict=True):
            if len(y):
                right += int((system.at(budget=cost * (1 + 1e-9)).predict(x) == y).sum())
                rows += len(y)
        return right / rows


def _without(costs: FeatureCosts, acquired: NDArray[np.intp]) -> FeatureCosts:
    """The prices once some features have been acquired."""
    own, shared = costs.own.copy(), costs.shared.copy()
    own[acquired] = 0.0
    shared[costs.group[acquired][costs.group[acquired] >= 0]] = 0.0
    named = [costs.group_names[g] if g >= 0 else None for g in costs.group]
    return FeatureCosts(own, group=named, shared=dict(zip(costs.group_names, shared, strict=True)))


def _row(name: str, root: str, gains: list[list[list[float]]]) -> tuple[str, ...]:
    means = np.nanmean(100 * np.array(gains), axis=2)  # by seed
    errors = means.std(axis=0, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.zeros(2)
    figures = (
        f"{mean:+.2f} ± {error:.2f}" for mean, error in zip(means.mean(0), errors, strict=True)
    )
    return (name, root, str(len(means)), *figures)


def _page(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [
        "# Branches after the first or second stage, beside one chain of stages",
        "",
        "Test accuracy in points, mean over the budgets of twelve that both have a point for, less "
        "that of `StagedCascade` as it is: of the branches, and where validation rows choose at "
        "each budget between branches and chain. A forest of 300 extra-trees is the high-cost "
        "model of all. `python -m benchmarks.bench_branches` makes this page.",
        "",
        *harness.table_lines(HEADER, rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
