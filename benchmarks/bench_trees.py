"""Tables and figures of the papers on budgeted trees, and the run time of exact pruning.

    python -m benchmarks.bench_trees [--quick] [--only timing,budgetrf,pruning,...]

- timing: the whole pruning frontier, single prices, and the minimum cut against other solvers
- budgetrf: BudgetRF's table 1 (ICML 2015), and fit times against scikit-learn's forest
- pruning: table 1 of "Optimally pruning decision tree ensembles" (2016) and BudgetPrune's figure 2
- cegb: CEGB's figures 2 and 3b (NIPS 2017), with GreedyMiser
- adapt: Adapt's figures 4 and 5 (NIPS 2017), with BudgetPrune and GreedyMiser

Each part runs in a separate process with one thread and replaces its section of trees.json. A run
of some parts writes into .bench-cache/quick unless ``--out benchmarks/results`` is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cache import code_version
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees import adapt, cegb, growth, pages, plots, pruning, timing

PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba")
#: Rows of each part of a fold with ``--quick``.
QUICK_ROWS = 600

#: Seeds of the forests; sets that take hours have only the first.
SEEDS = (0, 1, 2)


def _measure_timing(is_quick: bool) -> dict[str, Any]:
    problem = problems.get("forest-bin")
    fold = _make_fold("forest-bin", is_quick)
    n_trees = 4 if is_quick else 40
    timings = timing.measure_timings(fold, problem.costs, n_trees=n_trees, quick=is_quick)
    return {"data": problem.source, "note": problem.note, **timings}


def _measure_budgetrf(is_quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if is_quick else ("forest-bin", "forest-7", "mbne_tiny", "cifar10")
    tree_counts = (1, 4) if is_quick else growth.TREE_COUNTS
    times = growth.measure_seconds(
        _make_fold(names[0], is_quick), max(tree_counts), 1 if is_quick else 3
    )
    tables = {
        name: growth.measure_table(
            name,
            SEEDS[:1] if is_quick or name in ("forest-7", "cifar10") else SEEDS,
            tree_counts=tree_counts,
            fold=_make_fold(name, is_quick),
        )
        for name in names
    }
    return {"seconds": {"problem": names[0], **times}, "tables": tables}


def _measure_pruning(is_quick: bool) -> dict[str, Any]:
    tables = {}
    for name in ("mbne_tiny",) if is_quick else pruning.PAPER_LEVELS:
        folds = [_make_fold(name, is_quick)] if is_quick else None
        seeds = SEEDS[:1] if is_quick or name == "cifar10" else SEEDS
        tables[name] = pruning.measure_table(name, seeds, folds=folds)
    size = {"n_trees": 4, "n_points": 5} if is_quick else {"n_trees": 40, "n_points": 30}
    return {
        "figures": _measure_figures(pruning.measure_figure, ("forest-bin",), is_quick, **size),
        "tables": tables,
    }


def _measure_cegb(is_quick: bool) -> dict[str, Any]:
    size = {"n_rounds": 5, "n_penalties": 3} if is_quick else {"n_rounds": 100, "n_penalties": 12}
    return {"figures": _measure_figures(cegb.measure_figures, ("forest-bin",), is_quick, **size)}


def _measure_adapt(is_quick: bool) -> dict[str, Any]:
    size = {"n_trees": 4, "n_rounds": 5} if is_quick else {"n_trees": 40, "n_rounds": 100}
    return {
        "figures": _measure_figures(
            adapt.measure_figure, ("forest-bin", "letter-bin"), is_quick, **size
        )
    }


def _measure_figures(
    measure: Callable[..., dict[str, Any]], names: tuple[str, ...], is_quick: bool, **size: int
) -> dict[str, Any]:
    """Measure a figure on `mbne_tiny`, and on further problems unless the run is quick."""
    names = ("mbne_tiny", *(() if is_quick else names))
    return {name: measure(name, fold=_make_fold(name, is_quick), **size) for name in names}


def _make_fold(name: str, is_quick: bool) -> Fold:
    fold = problems.get(name).make_folds(0)[0]
    return fold.sample(QUICK_ROWS) if is_quick else fold


def _measure_part(
    measure: Callable[[bool], dict[str, Any]], module: str, options: harness.Options
) -> dict[str, Any]:
    """Measure a part, and record its settings, versions and the hash of its code."""
    return {
        "quick": options.quick,
        "threads": 1,
        **harness.environment(PACKAGES),
        "code": code_version(module),
        **measure(options.quick),
    }


def merge(path: Path, sections: dict[str, Any]) -> dict[str, Any]:
    """Replace the sections of the parts that were run; draw the plots of figure 2."""
    for name, figure in sections.get("pruning", {"figures": {}})["figures"].items():
        plots.plot(name, figure, path.with_name(f"trees-{name}.svg"))
    return {"parts": harness.merge_parts(path, {}).get("parts", {}) | sections}


BENCHMARK = harness.Benchmark(
    name="trees",
    quick_help="use few rows and trees",
    packages=PACKAGES,
    page=pages.page,
    merge=merge,
    parts={
        "timing": partial(_measure_part, _measure_timing, timing.__name__),
        "budgetrf": partial(_measure_part, _measure_budgetrf, growth.__name__),
        "pruning": partial(_measure_part, _measure_pruning, pruning.__name__),
        "cegb": partial(_measure_part, _measure_cegb, cegb.__name__),
        "adapt": partial(_measure_part, _measure_adapt, adapt.__name__),
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
