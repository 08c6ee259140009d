"""Cells: one problem, one method, one seed. Each is run once and then read from the cache.

A cell is a JSON file under ``.bench-cache/``, its name a hash of the settings, of the data and of
the code that decides the result: the method's module with all of ours that it imports. Files are
written whole or not at all, so a run that is broken off goes on where it stopped.
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

from benchmarks.cache import CACHE, write_whole
from benchmarks.comparison import peers
from benchmarks.comparison.record import COLUMNS
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.console import plain


@dataclass(frozen=True)
class Settings:
    """What all cells of a run share."""

    quick: bool = False  # 2,000 training rows, short sweeps, two folds: a look, not a result
    fits: int = 14  # models of a peer's sweep

    @property
    def fits_of(self) -> int:
        """Models of a sweep in force."""
        return min(self.fits, 5) if self.quick else self.fits

    def folds(self, problem: Problem, seed: int) -> list[Fold]:
        """Folds of a problem, thinned for a quick look."""
        problem_folds = problem.deal(seed)
        return [fold.thinned(2000) for fold in problem_folds[:2]] if self.quick else problem_folds


@dataclass(frozen=True)
class Cell:
    """One problem, one method, one seed."""

    problem: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.problem} {self.method} seed {self.seed}"

    def key(self, settings: Settings) -> str:
        """Name of the cell's file: readable, and a hash of all that decides the result."""
        problem = problems.get(self.problem)
        seed = 0 if peers.same_for_all_seeds(self.method, problem) else self.seed
        decides = [
            asdict(settings),
            self.problem,
            problem.source,
            problem.note,
            seed,
            self.method,
            peers.code_of(self.method),
        ]
        digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
        method = self.method.rpartition("/")[2].replace(":", "-")  # a user's: without its folder
        return f"{self.problem}.{method}.{seed}.{digest}"


def cached(cell: Cell, settings: Settings, cache: Path = CACHE) -> dict[str, Any] | None:
    """Read a cell's result, None if it has not been run."""
    path = cache / f"{cell.key(settings)}.json"
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def run(cell: Cell, settings: Settings, cache: Path = CACHE) -> dict[str, Any]:
    """Run a cell, unless the cache has it, and write its result."""
    cached_result = cached(cell, settings, cache)
    if cached_result is not None:
        return cached_result
    problem = problems.get(cell.problem)
    folds = []
    for number, fold in enumerate(settings.folds(problem, cell.seed)):
        keep = _keeper(cell, settings, number, cache)
        task = peers.Task(problem, fold, cell.seed, settings.fits_of, keep)
        outcome = peers.solve(cell.method, task)
        folds.append(
            {
                "n_test": len(fold.truth),
                "points": [[getattr(p, c) for c in COLUMNS] for p in outcome.points],
                "own": outcome.own and [getattr(outcome.own, c) for c in COLUMNS],
                "seconds": outcome.seconds,
                "about": outcome.about,
            }
        )
    result = {
        **asdict(cell),
        "settings": asdict(settings),
        "code": peers.code_of(cell.method),
        "data": problem.source,
        "columns": COLUMNS,
        "folds": folds,
    }
    record: dict[str, Any] = plain(result)
    write_whole(cache / f"{cell.key(settings)}.json", json.dumps(record))
    return record


def run_cells(
    cells: Sequence[Cell],
    settings: Settings,
    *,
    n_jobs: int = 1,
    cache: Path = CACHE,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run cells side by side, each fit on one thread; done ones are skipped.

    Cells that share models (f0, static subsets) wait for the one that makes them.
    """
    missing = [cell for cell in cells if cached(cell, settings, cache) is None]
    cells_to_run = list({cell.key(settings): cell for cell in reversed(missing)}.values())[::-1]
    say(f"{len(cells) - len(missing)} of {len(cells)} cells are in the cache")
    makers = [cell for cell in cells_to_run if cell.method in ("f0", "static")]
    method_cells = [cell for cell in cells_to_run if cell not in makers]
    n_done = 0
    for wave in (makers, method_cells):
        for cell, seconds in _parallel(wave, settings, n_jobs, cache):
            n_done += 1
            say(f"[{n_done}/{len(cells_to_run)}] {cell}: {seconds:.0f} s")


def _parallel(
    wave: list[Cell], settings: Settings, n_jobs: int, cache: Path
) -> Iterator[tuple[Cell, float]]:
    if not wave:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers inherit it
    work = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    yield from work(joblib.delayed(_timed)(cell, settings, cache) for cell in wave)


def _timed(cell: Cell, settings: Settings, cache: Path) -> tuple[Cell, float]:
    start = time.monotonic()
    run(cell, settings, cache)
    return cell, time.monotonic() - start


def _keeper(
    cell: Cell, settings: Settings, fold: int, cache: Path
) -> Callable[[str, Callable[[], Any]], Any]:
    """Keep models that several methods share, under the key of the method that makes them."""

    def keep(name: str, make: Callable[[], Any]) -> Any:
        maker = {"cloud": "f0", "subsets": "static"}[name]
        key = Cell(cell.problem, maker, cell.seed).key(settings)
        memory = joblib.Memory(cache / "shared", verbose=0)
        return memory.cache(_make, ignore=["make"])(f"{key}.{name}.{fold}", make)

    return keep


def _make(key: str, make: Callable[[], Any]) -> Any:
    return make()
