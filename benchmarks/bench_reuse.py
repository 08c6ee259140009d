"""Prices on the first use of features and thresholds, beside today's search within few bytes.

    python -m benchmarks.bench_reuse [--quick] [--only SET,...]

Single boosted models on all features, as C's tables of 1 to 8 KB. Today's search fits each shape of
trees that is worth it by LightGBM, takes as many rounds as fit and rounds leaves to a byte. Beside
it the same shapes, rounds and leaves by boosting with ToaD's prices (ICLR 2026), all of them 0,
and any of a small grid. Validation rows choose shape and prices, test rows report. A seed draws
four fifths of the training rows, at most 12,000. Writes reuse.json and reuse.md into
benchmarks/results. Finished seeds are kept in .bench-cache/reuse, so that a run that is broken off
goes on.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, write_whole
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.reuse_boosting import Boosted, Prices, Table, boost
from benchmarks.trees.reuse_page import HEADER, SIZES, WAYS, Cell, page, row
from gatewise.console import note, table
from gatewise.decision import labels
from gatewise.models.stage import Stage
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.graphs.packed_size import packed_bytes
from gatewise_training.learners.boosting import capacity, link_of
from gatewise_training.learners.model_families import cross_fitted_stage
from gatewise_training.learners.stage_bounds import Bounds, TreeShape, grid_of, shaped

SETS = ("letter-bin", "mbne_tiny", "thyroid", "forest-bin", "letter-26", "forest-7")
SEEDS = (0, 1, 2)
SHARE, MOST_ROWS = 0.8, 12_000
"""Training rows that a seed draws, and at most so many."""
FREE = Prices()
PRICES = (
    FREE,
    *(Prices(price, price) for price in (2.0, 8.0, 32.0)),
    *(Prices(threshold=price) for price in (2.0, 8.0, 32.0)),
    *(Prices(feature=price) for price in (2.0, 8.0, 32.0)),
)
MOST_CODES = 253
"""Values or bins of a feature at most: their thresholds have ranks of 8 bits."""
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm", "numba")
FOLDER = CACHE / "reuse"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    options = harness.parser("bench_reuse", __doc__, "one seed: only a look", SETS).parse_args(
        arguments
    )

    def action() -> int:
        chosen = harness.chosen_parts(options, SETS)
        seeds = SEEDS[:1] if options.quick else SEEDS
        found: dict[str, list[Cell]] = {name: [] for name in chosen}
        for seed in seeds:
            for name in chosen:
                found[name].append(_cell(name, seed))
        rows = [row(name, size, cells) for name, cells in found.items() for size in SIZES]
        table("Prices on first use", HEADER, rows)
        result = {"settings": _settings() | {"seeds": len(seeds)}, "sets": found}
        whole = tuple(chosen) == SETS
        harness.write_results(
            harness.out_folder(options, whole=whole), "reuse",
            result | harness.environment(PACKAGES), page(found, rows, PRICES),
        )  # fmt: skip
        return 0

    return harness.run_command(action, "stopped; finished seeds are kept")


def _settings() -> dict[str, Any]:
    return {
        "sizes": SIZES,
        "share": SHARE,
        "most_rows": MOST_ROWS,
        "prices": [vars(prices) for prices in PRICES],
        "most_codes": MOST_CODES,
    }


def _cell(name: str, seed: int) -> Cell:
    """Figures of a set and seed, kept until the data, the settings or the code of fits change."""
    problem = problems.get(name)
    modules = "benchmarks.trees.reuse_boosting", "gatewise_training.learners.model_families"
    parts = [*(code_version(module) for module in modules), problem.source, _settings()]
    version = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    path = FOLDER / f"{name}.{seed}.{version}.json"
    if not path.is_file():
        cell = measured(problem.deal(seed)[0], problem.n_classes, seed)
        write_whole(path, json.dumps(cell))
        note(f"{name}, seed {seed}: {cell['cpu_seconds']} CPU s")
    found: Cell = json.loads(path.read_text())
    return found


def measured(
    fold: Fold, n_classes: int, seed: int, sizes: Sequence[int] = SIZES,
    prices: Sequence[Prices] = PRICES,
) -> Cell:  # fmt: skip
    """Accuracy, bytes, thresholds and features in use by size and way, and seconds by way.

    None where nothing is as small. The first of the prices are 0.
    """
    x, y = fold.train
    drawn = np.random.default_rng(seed).permutation(len(y))
    drawn = np.sort(drawn[: min(int(SHARE * len(y)), MOST_ROWS)])
    plan = ValidationSplit.choose(
        x[drawn], y[drawn], np.ones(len(drawn)), validation=fold.validation, seed=seed
    )
    codes = Codes.of_table(x[:50])  # compiles, so that no seconds are charged for it
    boost((x[:50], y[:50]), n_classes, TreeShape(4, 0.4), FREE, codes=codes, max_bytes=64)
    clock = [time.process_time()]
    chosen: dict[str, dict[int, _Chosen | None]] = {}
    bounds = {size: _bounds(plan, size) for size in sizes}
    chosen["today"] = {size: _todays(plan, n_classes, seed, each) for size, each in bounds.items()}
    clock.append(time.process_time())
    search = _Search(plan, n_classes, bounds)
    for way, some in (("price 0", prices[:1]), ("prices", prices[1:])):
        search.fit(some)
        chosen[way] = {size: search.chosen(size) for size in sizes}
        clock.append(time.process_time())
    seconds = np.diff(clock)
    seconds[2] += seconds[1]  # price 0 is one of the prices
    return {
        "rows": len(plan.fit_rows),
        "cpu_seconds": dict(zip(WAYS, np.round(seconds, 1).tolist(), strict=True)),
        "sizes": {
            str(size): {way: _figures(chosen[way][size], fold.test, size) for way in WAYS}
            for size in sizes
        },
    }


def _bounds(plan: ValidationSplit, size: int) -> Bounds:
    grid = grid_of(plan.x[plan.fit_rows], size)
    return Bounds(packed_bytes=size, thresholds=None if grid is None else grid[0])


# -- what validation rows choose from ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A model with its accuracy on validation rows, and what chose it."""

    validation: float
    stage: Stage
    how: dict[str, Any]


def _todays(plan: ValidationSplit, n_classes: int, seed: int, bounds: Bounds) -> _Chosen | None:
    """Today's best model of all shapes that keep the bounds."""
    n_columns, best = plan.x.shape[1], None
    truth = plan.y[plan.validation_rows]
    tried = shaped(("boosting",), bounds, len(plan.fit_rows), n_classes, n_columns)
    for family, each in tried.values():
        stage, outputs = cross_fitted_stage(
            plan, family, np.arange(n_columns), n_classes, seed, each
        )
        validation = float(np.mean(labels(outputs) == truth))
        if each.admit(stage) and (best is None or validation > best.validation):
            best = _Chosen(validation, stage, vars(each.shape))
    return best


class _Search:
    """Priced models of all shapes; one fit serves all sizes, as its first rounds do not differ."""

    def __init__(self, plan: ValidationSplit, n_classes: int, bounds: dict[int, Bounds]) -> None:
        self.plan, self.n_classes, self.bounds = plan, n_classes, bounds
        self.truth = plan.y[plan.validation_rows]
        n_rows, n_columns = len(plan.fit_rows), plan.x.shape[1]
        bins = capacity(n_rows, n_classes).get("max_bin", MOST_CODES)
        self.codes = {
            i: Codes.of_table(plan.x[rows], most=bins) for i, (rows, _) in enumerate(plan.folds)
        }
        self.all_codes = Codes.of_table(plan.x[plan.fit_rows], most=bins)
        self.largest: dict[TreeShape, int] = {}
        self.shapes: dict[int, list[TreeShape]] = {}
        for size, each in sorted(bounds.items()):
            tried = shaped(("boosting",), each, n_rows, n_classes, n_columns).values()
            self.shapes[size] = [b.shape for _, b in tried if b.shape is not None]
            self.largest |= dict.fromkeys(self.shapes[size], size)
        self.found: dict[int, list[tuple[float, _Priced]]] = {size: [] for size in bounds}

    def fit(self, prices: Iterable[Prices]) -> None:
        """Fit all shapes at these prices."""
        for each in prices:
            for shape, largest in self.largest.items():
                priced = _Priced(self, shape, each, largest)
                for size, bounds in self.bounds.items():
                    if shape in self.shapes[size]:
                        self.found[size].append((priced.validation(bounds), priced))

    def chosen(self, size: int) -> _Chosen | None:
        """The best model that keeps a size; the first fitted if several are."""
        for validation, priced in sorted(self.found[size], key=lambda each: -each[0]):
            if validation > 0:
                stage = priced.stage(self.bounds[size])
                if self.bounds[size].admit(stage):
                    return _Chosen(validation, stage, vars(priced.shape) | vars(priced.prices))
        return None


@dataclass(frozen=True, eq=False)
class _Priced:
    """A shape at some prices: a model of each fold, and the one that is kept."""

    search: _Search
    shape: TreeShape
    prices: Prices
    largest: int

    @cached_property
    def folds(self) -> list[Boosted]:
        plan = self.search.plan
        return [
            self._boosted(rows, unseen, self.search.codes[i])
            for i, (rows, unseen) in enumerate(plan.folds)
        ]

    @cached_property
    def kept(self) -> Boosted:
        """The model of the only fold, else that of all rows."""
        if len(self.folds) == 1:
            return self.folds[0]
        return self._boosted(self.search.plan.fit_rows, None, self.search.all_codes)

    def _boosted(self, rows: Rows, unseen: Rows | None, codes: Codes) -> Boosted:
        x, y = self.search.plan.x, self.search.plan.y
        return boost(
            (x[rows], y[rows]), self.search.n_classes, self.shape, self.prices, codes=codes,
            max_bytes=self.largest, validation=None if unseen is None else (x[unseen], y[unseen]),
        )  # fmt: skip

    def _cut(self, boosted: Boosted, rounds: int, bounds: Bounds) -> tuple[Stage, int]:
        """The first rounds that fit, at most so many."""

        def stage_of(rounds: int) -> Stage:
            trees = bounds.rounded(boosted.first(rounds))
            return Stage.from_model(trees, link_of(self.search.n_classes))

        rounds = bounds.most_rounds(stage_of, rounds)
        return stage_of(rounds), rounds

    def validation(self, bounds: Bounds) -> float:
        """Accuracy on validation rows of models that have not seen them; 0 without any tree."""
        plan, outputs = self.search.plan, []
        for boosted, (_, unseen) in zip(self.folds, plan.folds, strict=True):
            if not boosted.best:
                return 0.0
            outputs.append(self._cut(boosted, boosted.best, bounds)[0].margins(plan.x[unseen]))
        return float(np.mean(labels(np.concatenate(outputs)) == self.search.truth))

    def stage(self, bounds: Bounds) -> Stage:
        """The model that is kept: of as many rounds as the folds' have in the mean."""
        cut = [self._cut(boosted, max(1, boosted.best), bounds) for boosted in self.folds]
        if len(cut) == 1:
            return cut[0][0]
        rounds = round(float(np.mean([rounds for _, rounds in cut])))
        return self._cut(self.kept, min(rounds, len(self.kept.ends)), bounds)[0]


def _figures(chosen: _Chosen | None, test: Table, size: int) -> dict[str, Any] | None:
    if chosen is None:
        return None
    stage, (x, y) = chosen.stage, test
    n_bytes = packed_bytes((stage,), "c99")
    assert n_bytes <= size
    trees = stage.model
    inner = trees.feature >= 0
    tests = np.stack([trees.feature[inner], trees.threshold[inner]])
    return {
        "accuracy": float(np.mean(labels(stage.margins(x)) == y)),
        "validation": chosen.validation,
        "bytes": n_bytes,
        "trees": trees.n_trees,
        "inner_nodes": int(inner.sum()),
        "thresholds": np.unique(tests, axis=1).shape[1],
        "features": len(stage.features),
        "chosen": chosen.how,
    }


if __name__ == "__main__":
    sys.exit(main())
