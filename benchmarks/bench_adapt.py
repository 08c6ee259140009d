"""Accuracy and cost of this project's methods and of their peers on all problems.

    python -m benchmarks.bench_adapt [--quick] [--only letter-bin,thyroid] [--methods staged,...]
    python -m benchmarks.bench_adapt --only thyroid --add mine.py:Mine --out my-results

`--add` compares your own method on the same rows (see examples/own_method.py). The benchmark runs
the cells that the cache lacks. It then writes adapt.md and, in the folder adapt, the figures and a
plot of each problem. The figures of other problems do not change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cache import CACHE, write_whole
from benchmarks.comparison import peers, summary
from benchmarks.comparison.cells import Cell, Settings, run_cell, run_cells
from benchmarks.comparison.method import load_user_method
from benchmarks.comparison.pages import accuracy_page, bytes_page, plots, simpler_page
from benchmarks.comparison.pages.cell_texts import OURS
from benchmarks.comparison.record import BYTE_BOUNDS
from benchmarks.data import problems
from gatewise.console import as_json_value, note

#: All problems except sonar, which only the tables on pruning need, and the bundled sets, which are
#: for tests.
DEFAULT_PROBLEMS = tuple(
    problem for problem in problems.PROBLEMS if problem not in ("sonar", "breast_cancer", "digits")
)
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm", "catboost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status (2 for bad input, 130 after Ctrl-C)."""
    parser = harness.parser("bench_adapt", __doc__, "use few rows and fits")
    parser.add_argument("--only", default=",".join(DEFAULT_PROBLEMS), metavar="PROBLEM,...")
    parser.add_argument("--methods", default=",".join(peers.methods()), metavar="METHOD,...")
    parser.add_argument(
        "--add", action="append", default=[], metavar="FILE.py:CLASS", help="your own method"
    )
    parser.add_argument(
        "--seeds", type=int, default=None, help="number of seeds; 5 by default, 1 with --quick"
    )
    parser.add_argument(
        "--jobs", type=int, default=-1, help="number of parallel cells; -1 for all cores"
    )
    parser.add_argument(
        "--pages", action="store_true", help="write only the pages, from the existing figures"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of cached cells")
    options = parser.parse_args(arguments)
    message = "stopped; the same command continues with the cells that are not finished"
    return harness.run_command(lambda: _run_benchmark(options), message)


def _run_benchmark(options: argparse.Namespace) -> int:
    settings = Settings(quick=options.quick)
    out = harness.out_folder(options)
    if options.pages:
        _write_pages(out)
        return 0
    names, methods = _read_names_and_methods(options)
    seeds = options.seeds or (1 if options.quick else 5)
    folder = out / "adapt"
    for name in names:
        cells = [Cell(name, method, seed) for method in methods for seed in range(seeds)]
        run_cells(cells, settings, n_jobs=options.jobs, cache=options.cache, report=note)
        figures = _round_floats(
            as_json_value(_summarise_problem(name, cells, settings, options.cache))
        )
        # Write after each problem, so that an interrupted run leaves its results.
        write_whole(folder / f"{name}.json", json.dumps(figures, indent=1) + "\n")
        plots.plot(name, figures, folder / f"{name}.svg")
        _write_pages(out)
        note(f"{name}: {out / 'adapt.md'}")
    return 0


def _write_pages(out: Path) -> None:
    files = {name: out / "adapt" / f"{name}.json" for name in problems.PROBLEMS}
    figures = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    write_whole(out / "adapt.md", accuracy_page.markdown(figures))
    write_whole(out / "bytes.md", bytes_page.markdown(figures))
    write_whole(out / "simpler.md", simpler_page.markdown(figures))


def _read_names_and_methods(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    names = harness.split_names(options.only, problems.PROBLEMS, "problem")
    methods = harness.split_names(options.methods, peers.methods(), "method")
    for class_path in options.add:
        load_user_method(class_path, seed=0)  # report an error before any cell runs
    # the project's methods first
    return names, [*(method for method in peers.methods() if method in methods), *options.add]


def _summarise_problem(
    name: str, cells: Sequence[Cell], settings: Settings, cache: Path
) -> dict[str, Any]:
    records_by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        record = run_cell(cell, settings, cache)
        records_by_method.setdefault(cell.method, []).append(record | {"seed": cell.seed})
    figures = summary.summarise(problems.get(name), records_by_method)
    if OURS in records_by_method and len(records_by_method) > 1:
        n_test = sum(fold["n_test"] for fold in records_by_method[OURS][0]["folds"])
        figures["against"] = summary.compare(figures, OURS, n_test)
        for bound in BYTE_BOUNDS.values():
            kb = bound // 1024
            figures[f"against_{kb}_kb"] = summary.compare(
                figures, OURS, n_test, accuracies=f"at_budgets_{kb}_kb"
            )
    figures["settings"] = {"quick": settings.quick, "fits": settings.n_fits}
    figures["versions"] = harness.environment(PACKAGES)["versions"]
    return figures


def _round_floats(figures: Any) -> Any:
    """Round floats to six significant digits."""
    if isinstance(figures, dict):
        return {key: _round_floats(value) for key, value in figures.items()}
    if isinstance(figures, list):
        return [_round_floats(value) for value in figures]
    return float(f"{figures:.6g}") if isinstance(figures, float) else figures


if __name__ == "__main__":
    sys.exit(main())
