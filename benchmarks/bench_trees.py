"""Tables and figures of the papers on budgeted trees, and the run time of exact pruning.

    python -m benchmarks.bench_trees [--quick] [--only timing,budgetrf,pruning,...]

- timing: the whole pruning frontier, single prices, and the minimum cut against other solvers
- budgetrf: BudgetRF's table 1 and figure 3 (ICML 2015), and fit times against scikit-learn's forest
- pruning: table 1 of "Optimally pruning decision tree ensembles" (2016) and BudgetPrune's figure 2
- budgetprune: BudgetPrune's table 1 and figures 5, 6 and 7 (NIPS 2016)
- cegb: CEGB's figures 2, 3 and 4 (NIPS 2017), with GreedyMiser
- adapt: Adapt's figures 2, 4 and 5 (NIPS 2017), with BudgetPrune and GreedyMiser

Each part runs in a separate process with one thread. After each part the benchmark replaces its
section of trees.json and writes the page again. ``--quick`` writes into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cache import code_version, write_whole
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees import adapt, budget_prune, cegb, cegb_prices, growth, pages, pruning, timing
from gatewise.console import as_json_value, note

PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba", "ortools")
#: Rows of each part of a fold with ``--quick``.
QUICK_ROWS = 600

#: Seeds of the forests; sets that take hours have only the first.
SEEDS = (0, 1, 2)

#: Number of seeds per problem for BudgetRF's figure 3; each run has ten thresholds.
FIGURE_SEEDS = {"mbne_tiny": 3, "forest-bin": 1}

#: Rows of CIFAR-10 for figure 7 of BudgetPrune; more rows would take hours.
SUBSET_ROWS = 3000


def _timing(quick: bool) -> dict[str, Any]:
    problem = problems.get("forest-bin")
    fold = _fold("forest-bin", quick)
    n_trees = 4 if quick else 40
    timings = timing.measure_timings(fold, problem.costs, n_trees=n_trees, quick=quick)
    return {"problem": "forest-bin", "data": problem.source, "note": problem.note, **timings}


def _budgetrf(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("forest-bin", "forest-7", "mbne_tiny", "cifar10")
    tree_counts = (1, 4) if quick else growth.TREE_COUNTS
    timed_problem = "mbne_tiny" if quick else "forest-bin"
    times = growth.measure_seconds(_fold(timed_problem, quick), max(tree_counts), 1 if quick else 3)
    tables = {
        name: growth.measure_table(
            name,
            SEEDS[:1] if quick or name in ("forest-7", "cifar10") else SEEDS,
            tree_counts=tree_counts,
            fold=_fold(name, quick),
        )
        for name in names
    }
    figures = {
        name: growth.measure_figure(
            name,
            SEEDS[:n_seeds],
            alphas=(0, 10) if quick else growth.PAPER_ALPHAS,
            n_trees=max(tree_counts),
            fold=_fold(name, quick),
        )
        for name, n_seeds in (("mbne_tiny", 1),) * quick or FIGURE_SEEDS.items()
    }
    return {
        "seconds": {"problem": timed_problem, **times},
        "tables": tables,
        "figures": figures,
        "ranking": growth.measure_ranking(
            n_trees=max(tree_counts), tree_counts=tree_counts, folds=_ranked_folds(quick)
        ),
    }


def _pruning(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("mbne_tiny", "forest-bin")
    size = {"n_trees": 4, "n_points": 5} if quick else {"n_trees": 40, "n_points": 30}
    tables = {}
    for name in ("mbne_tiny",) if quick else pruning.PAPER_LEVELS:
        folds = [_fold(name, quick)] if quick else None
        seeds = SEEDS[:1] if quick or name == "cifar10" else SEEDS
        tables[name] = pruning.measure_table(name, seeds, folds=folds)
    figures = {
        name: pruning.measure_figure(name, fold=_fold(name, quick), **size) for name in names
    }
    return {"figures": figures, "tables": tables}


def _budgetprune(quick: bool) -> dict[str, Any]:
    n_trees = 4 if quick else 40
    # function and number of seeds per problem; ten seeds would take hours on the larger sets
    measurement_by_title: dict[str, Any] = {
        "prices": (budget_prune.measure_prices, {"mbne_tiny": 10}),
        "impurities": (budget_prune.measure_impurities, {"mbne_tiny": 5, "forest-bin": 2}),
        "subsets": (budget_prune.measure_subsets, {"cifar10": 1}),
    }
    figures = {}
    for title, (measure, numbers_of_seeds) in measurement_by_title.items():
        names = {"mbne_tiny": 1} if quick else numbers_of_seeds
        figures[title] = {
            name: measure(name, range(n_seeds), n_trees=n_trees, fold=_figure_fold(name, quick))
            for name, n_seeds in names.items()
        }
    usage = budget_prune.measure_usage(
        range(1 if quick else 5), n_trees=n_trees, fold=_fold("mbne_tiny", quick)
    )
    return {"usage": usage, "figures": figures}


def _cegb(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("mbne_tiny", "forest-bin")
    sweep_size = (
        {"n_rounds": 5, "n_penalties": 3} if quick else {"n_rounds": 100, "n_penalties": 12}
    )
    frame_settings = {"n_frames": 2, "size": 64, "n_rows": 600, "n_rounds": 5}
    if not quick:
        frame_settings = {"n_frames": 20, "size": 128, "n_rows": 20_000, "n_rounds": 50}
    rounds = (2, 4) if quick else (12, 25, 50, 100, 200)
    return {
        "figures": {
            name: cegb.measure_figures(name, fold=_fold(name, quick), **sweep_size)
            for name in names
        },
        "tradeoffs": cegb_prices.measure_tradeoffs(rounds, folds=_ranked_folds(quick)),
        "multiscale": cegb_prices.measure_multiscale(**frame_settings),
    }


def _adapt(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else tuple(adapt.FIGURES)
    size = {"n_trees": 4, "n_rounds": 5} if quick else {"n_trees": 40, "n_rounds": 100}
    return {
        "figures": {
            name: adapt.measure_figure(name, fold=_fold(name, quick), **size) for name in names
        },
        "synthetic": [adapt.measure_synthetic(seed) for seed in (SEEDS[:1] if quick else SEEDS)],
    }


#: Function that measures a part, and module whose code version the result records.
PARTS: dict[str, tuple[Callable[[bool], dict[str, Any]], Any]] = {
    "timing": (_timing, timing),
    "budgetrf": (_budgetrf, growth),
    "pruning": (_pruning, pruning),
    "budgetprune": (_budgetprune, budget_prune),
    "cegb": (_cegb, cegb),
    "adapt": (_adapt, adapt),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, 2 for bad input, or 130 after Ctrl-C."""
    parser = harness.parser("bench_trees", __doc__, "use few rows and trees", PARTS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(_measure_part(options.part, options.quick)))
        return 0
    return harness.run_command(
        lambda: _run_parts(options), "stopped; the finished parts are written"
    )


def _run_parts(options: argparse.Namespace) -> int:
    parts_to_run = harness.chosen_parts(options, PARTS)
    # report a missing data file before any process starts
    problems.get("mbne_tiny" if options.quick and "timing" not in parts_to_run else "forest-bin")
    out = harness.out_folder(options)
    for name in [name for name in PARTS if name in parts_to_run]:
        write(out, name, harness.run_part(__spec__.name, name, *["--quick"] * options.quick))
    note(f"wrote {out / 'trees.md'}")
    return 0


def write(out: Path, name: str, section: dict[str, Any]) -> None:
    """Replace the section of one part, then write the page and the plots again."""
    path = out / "trees.json"
    sections = json.loads(path.read_text())["parts"] if path.is_file() else {}
    figures = document(sections | {name: section})
    write_whole(path, json.dumps(figures, indent=1) + "\n")
    write_whole(out / "trees.md", pages.markdown(figures))
    if "pruning" in figures["parts"]:
        for problem, figure in figures["parts"]["pruning"]["figures"].items():
            pages.plot(problem, figure, out / f"trees-{problem}.svg")


def document(parts: dict[str, Any]) -> dict[str, Any]:
    """Sort the sections in the order of PARTS; each has its own settings and versions."""
    return {"parts": {name: parts[name] for name in PARTS if name in parts}}


def _fold(name: str, quick: bool) -> Fold:
    fold = problems.get(name).make_folds(0)[0]
    return fold.sample(QUICK_ROWS) if quick else fold


def _figure_fold(name: str, quick: bool) -> Fold:
    """Return the first fold of a problem, with fewer rows for CIFAR-10."""
    fold = _fold(name, quick)
    return fold.sample(SUBSET_ROWS) if name == "cifar10" else fold


def _ranked_folds(quick: bool) -> list[Fold] | None:
    """Return a small fold of MQ2008 for a quick run; None selects all folds."""
    return [problems.get("mq2008").make_folds(0)[0].sample(QUICK_ROWS)] if quick else None


def _measure_part(name: str, quick: bool) -> dict[str, Any]:
    measure, module = PARTS[name]
    section: dict[str, Any] = as_json_value(measure(quick))
    environment = {
        "quick": quick,
        "threads": 1,
        **harness.environment(PACKAGES),
        "code": code_version(module.__name__),
    }
    return environment | section


if __name__ == "__main__":
    sys.exit(main())
