"""Cells of the comparison, each with one problem, method and seed, and their cache.

The result of a cell is a JSON file in ``.bench-cache/``. Its name contains a hash of the settings,
the data and the code of the method, which includes all project modules that it imports. Files are
written atomically, and an interrupted run continues with the missing cells.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib

from benchmarks.cache import CACHE, read_or_compute
from benchmarks.comparison import peers
from benchmarks.comparison.record import COLUMNS, Point
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem

#: Method that fits each model which other methods reuse, by the name of the model.
METHOD_OF_MODEL = {"cloud": "f0", "subsets": "static"}


@dataclass(frozen=True)
class Settings:
    """Settings of all cells of a run."""

    quick: bool = False  # use 2,000 training rows, short sweeps and two folds
    #: Number of models in the sweep of a peer, a little more than a problem has budgets.
    max_fits: int = 14

    @property
    def n_fits(self) -> int:
        """Number of models in a sweep, which a quick run limits to five."""
        return min(self.max_fits, 5) if self.quick else self.max_fits

    def folds(self, problem: Problem, seed: int) -> list[Fold]:
        """Make the folds of a problem; a quick run draws rows from the first two."""
        problem_folds = problem.make_folds(seed)
        return [fold.sample(2000) for fold in problem_folds[:2]] if self.quick else problem_folds


@dataclass(frozen=True)
class Cell:
    """A combination of a problem, a method and a seed."""

    problem: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.problem} {self.method} seed {self.seed}"

    def key(self, settings: Settings) -> str:
        """Make the file name of the cell: problem, method, seed, and a hash of all inputs."""
        problem = problems.get(self.problem)
        seed = 0 if peers.ignores_seed(self.method, problem) else self.seed
        inputs = [
            asdict(settings),
            self.problem,
            problem.source,
            problem.note,
            seed,
            self.method,
            peers.code_hash(self.method),
        ]
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
        # a user's method is named by a path, of which only the file name is used
        method = self.method.rpartition("/")[2].replace(":", "-")
        return f"{self.problem}.{method}.{seed}.{digest}"

    def file(self, settings: Settings, cache: Path) -> Path:
        """Path of the cached result."""
        return cache / f"{self.key(settings)}.json"


def run_cell(cell: Cell, settings: Settings, cache: Path = CACHE) -> dict[str, Any]:
    """Run a cell and cache its result, or read it from the cache."""

    def run() -> dict[str, Any]:
        problem = problems.get(cell.problem)
        fold_results = []
        for fold_number, fold in enumerate(settings.folds(problem, cell.seed)):
            read_or_fit = _model_cache(cell, settings, fold_number, cache)
            task = peers.Task(problem, fold, cell.seed, settings.n_fits, read_or_fit)
            outcome = peers.run_method(cell.method, task)
            fold_results.append(
                {
                    "n_test": len(fold.test_truth),
                    "points": [_list_figures(point) for point in outcome.points],
                    "own": outcome.chosen_point and _list_figures(outcome.chosen_point),
                    "seconds": outcome.seconds,
                    "about": outcome.about,
                }
            )
        return {
            **asdict(cell),
            "settings": asdict(settings),
            "code": peers.code_hash(cell.method),
            "data": problem.source,
            "columns": COLUMNS,
            "folds": fold_results,
        }

    record: dict[str, Any] = read_or_compute(cell.file(settings, cache), run)
    return record


def _list_figures(point: Point) -> list[float]:
    return [getattr(point, column) for column in COLUMNS]


def run_cells(
    cells: Sequence[Cell],
    settings: Settings,
    *,
    n_jobs: int = 1,
    cache: Path = CACHE,
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run uncached cells in parallel, with one thread per fit; run cells of the same key once.

    The cells of f0 and of static subsets run first, because other cells reuse their models.
    """
    uncached_cells = [cell for cell in cells if not cell.file(settings, cache).is_file()]
    first_cells = {cell.key(settings): cell for cell in reversed(uncached_cells)}
    cells_to_run = list(first_cells.values())[::-1]
    report(f"{len(cells) - len(uncached_cells)} of {len(cells)} cells are in the cache")
    shared_model_cells = [cell for cell in cells_to_run if cell.method in METHOD_OF_MODEL.values()]
    other_cells = [cell for cell in cells_to_run if cell not in shared_model_cells]
    n_done = 0
    for batch in (shared_model_cells, other_cells):
        for cell, seconds in _run_parallel(batch, settings, n_jobs, cache):
            n_done += 1
            report(f"[{n_done}/{len(cells_to_run)}] {cell}: {seconds:.0f} s")


def _run_parallel(
    cells: list[Cell], settings: Settings, n_jobs: int, cache: Path
) -> Iterator[tuple[Cell, float]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers inherit it
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    yield from parallel(joblib.delayed(_run_timed)(cell, settings, cache) for cell in cells)


def _run_timed(cell: Cell, settings: Settings, cache: Path) -> tuple[Cell, float]:
    start_time = time.monotonic()
    run_cell(cell, settings, cache)
    return cell, time.monotonic() - start_time


def _model_cache(
    cell: Cell, settings: Settings, fold_number: int, cache: Path
) -> Callable[[str, Callable[[], Any]], Any]:
    """Make a function that caches models under the key of the method that fits them.

    The key is that of a cell, so it covers settings, data and code. A model's name and a fold have
    one function `fit_model`, so the cache ignores this function.
    """

    def read_or_fit(name: str, fit_model: Callable[[], Any]) -> Any:
        key = Cell(cell.problem, METHOD_OF_MODEL[name], cell.seed).key(settings)
        model_memory = joblib.Memory(cache / "shared", verbose=0)
        return model_memory.cache(_fit, ignore=["fit_model"])(
            f"{key}.{name}.{fold_number}", fit_model
        )

    return read_or_fit


def _fit(key: str, fit_model: Callable[[], Any]) -> Any:
    return fit_model()
