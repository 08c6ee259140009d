"""Budgeted trees: the papers' tables on the data at hand, and what exact pruning costs.

    python -m benchmarks.bench_trees [--quick] [--only timing,budgetrf,pruning,cegb,adapt]

- timing: the whole pruning frontier, single prices, and other solvers compared with the cut
- budgetrf: BudgetRF's table 1 (ICML 2015), and fit times against scikit-learn's forest
- pruning: table 1 of "Optimally pruning decision tree ensembles" (2016) and BudgetPrune's figure 2
- cegb: CEGB's figures 2 and 3b (NIPS 2017), with GreedyMiser
- adapt: Adapt's figures 4 and 5 (NIPS 2017), with BudgetPrune and GreedyMiser

Each part runs in a process of its own, with one thread. A part that is done replaces its section in
trees.json, and the page is written again; a quick look goes into .bench-cache/quick.
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
from benchmarks.trees import adapt, cegb, growth, pages, pruning, timing
from gatewise.console import note, plain

PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba", "ortools")
QUICK_ROWS = 600
SEEDS = (0, 1, 2)


def _timing(quick: bool) -> dict[str, Any]:
    problem = problems.get("forest-bin")
    fold = _fold("forest-bin", quick)
    trees = 4 if quick else 40
    timings = timing.timings(fold, problem.costs, n_trees=trees, quick=quick)
    return {"problem": "forest-bin", "data": problem.source, "note": problem.note, **timings}


def _budgetrf(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("forest-bin", "forest-7", "mbne_tiny", "cifar10")
    numbers = (1, 4) if quick else growth.NUMBERS
    timed = "mbne_tiny" if quick else "forest-bin"
    times = growth.seconds(_fold(timed, quick), max(numbers), 1 if quick else 3)
    tables = {
        name: growth.table(
            name,
            SEEDS[:1] if quick or name in ("forest-7", "cifar10") else SEEDS,
            numbers=numbers,
            fold=_fold(name, quick),
        )
        for name in names
    }
    return {"seconds": {"problem": timed, **times}, "tables": tables}


def _pruning(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("mbne_tiny", "forest-bin")
    size = {"n_trees": 4, "n_points": 5} if quick else {"n_trees": 40, "n_points": 30}
    tables = {}
    for name in ("mbne_tiny",) if quick else pruning.LEVELS:
        folds = [_fold(name, quick)] if quick else None
        seeds = SEEDS[:1] if quick or name == "cifar10" else SEEDS
        tables[name] = pruning.table(name, seeds, folds=folds)
    figures = {name: pruning.figure(name, fold=_fold(name, quick), **size) for name in names}
    return {"figures": figures, "tables": tables}


def _cegb(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else ("mbne_tiny", "forest-bin")
    size = {"n_rounds": 5, "n_penalties": 3} if quick else {"n_rounds": 100, "n_penalties": 12}
    return {
        "figures": {name: cegb.figures(name, fold=_fold(name, quick), **size) for name in names}
    }


def _adapt(quick: bool) -> dict[str, Any]:
    names = ("mbne_tiny",) if quick else tuple(adapt.FIGURES)
    size = {"n_trees": 4, "n_rounds": 5} if quick else {"n_trees": 40, "n_rounds": 100}
    return {
        "figures": {name: adapt.figure(name, fold=_fold(name, quick), **size) for name in names}
    }


PARTS: dict[str, tuple[Callable[[bool], dict[str, Any]], Any]] = {
    "timing": (_timing, timing),
    "budgetrf": (_budgetrf, growth),
    "pruning": (_pruning, pruning),
    "cegb": (_cegb, cegb),
    "adapt": (_adapt, adapt),
}
"""What measures each part, and the module whose code decides the result."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_trees", __doc__, "few rows and trees: only a look", PARTS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(_measured(options.part, options.quick)))
        return 0
    return harness.run_command(
        lambda: _run(options), "stopped; the parts that were done are written"
    )


def _run(options: argparse.Namespace) -> int:
    parts_to_run = harness.chosen_parts(options, PARTS)
    # a missing file is told before any process is started
    problems.get("mbne_tiny" if options.quick and "timing" not in parts_to_run else "forest-bin")
    out = harness.out_folder(options)
    for name in [name for name in PARTS if name in parts_to_run]:
        write(out, name, harness.run_part(__spec__.name, name, *["--quick"] * options.quick))
    note(f"wrote {out / 'trees.md'}")
    return 0


def write(out: Path, name: str, section: dict[str, Any]) -> None:
    """Replace one part's section, and write page and plots again."""
    path = out / "trees.json"
    sections = json.loads(path.read_text())["parts"] if path.is_file() else {}
    figures = document(sections | {name: section})
    write_whole(path, json.dumps(figures, indent=1) + "\n")
    write_whole(out / "trees.md", pages.markdown(figures))
    if "pruning" in figures["parts"]:
        for problem, figure in figures["parts"]["pruning"]["figures"].items():
            pages.plot(problem, figure, out / f"trees-{problem}.svg")


def document(parts: dict[str, Any]) -> dict[str, Any]:
    """All parts in their order; each knows its own settings and versions."""
    return {"parts": {name: parts[name] for name in PARTS if name in parts}}


def _fold(name: str, quick: bool) -> Fold:
    fold = problems.get(name).deal(0)[0]
    return fold.thinned(QUICK_ROWS) if quick else fold


def _measured(name: str, quick: bool) -> dict[str, Any]:
    measure, module = PARTS[name]
    section: dict[str, Any] = plain(measure(quick))
    environment = {
        "quick": quick,
        "threads": 1,
        **harness.environment(PACKAGES),
        "code": code_version(module.__name__),
    }
    return environment | section


if __name__ == "__main__":
    sys.exit(main())
