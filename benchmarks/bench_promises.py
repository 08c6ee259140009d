"""Promised losses on test rows of real tables, and comparison with two short recipes.

    python -m benchmarks.bench_promises [--quick]

`StagedCascade` is fitted on five splits of each of twelve tables, with its built-in high-cost model
and the default promise. The promise is that the cascade loses at most :data:`MAX_LOSS` of accuracy
compared with the high-cost model. The benchmark measures on the test rows of each split:

- whether the promise is kept, and whether ``gatewise train`` reports it if it is not
- the accuracy of the built-in high-cost model, compared with three plain models
- the accuracy of the system at two budgets, compared with two short recipes. One fits LightGBM on
  the most important features that the budget pays for. The other adds a threshold on the
  probability of such a small model, below which LightGBM on all features answers.

Finished splits are cached in ``.bench-cache/promises`` until the code changes. The results are
promises.json and promises.md in benchmarks/results; ``--quick`` measures two tables and writes into
.bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import gatewise as gw
from benchmarks import harness
from benchmarks.cache import CACHE, code_version, read_or_compute
from benchmarks.comparison.recipes import RECIPES, Labels, Rows, Split, make_booster
from benchmarks.data import problems
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data import datasets
from gatewise_training.data.datasets import load
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.promise_check import PromiseCheck, UnseenRows

TABLES = (
    "wine",
    "sonar",
    "statlog_heart",
    "breast_cancer",
    "thyroid",
    "occupancy",
    "letter",
    "mbne_tiny",
    "mq2008",
    "covertype",
    "digits",
    "iris",
)
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
#: Folds of a table, each of which tests a promise once.
N_SPLITS = 5
#: Maximum number of training rows of a split; splits of larger tables share no rows.
MAX_TRAINING_ROWS = 600
#: Maximum number of test rows of a split; a share of them has a standard error of at most 1.1 %.
MAX_TEST_ROWS = 2000
#: Loss of accuracy that the cascade promises by default.
MAX_LOSS = 0.01
#: Budgets, as shares of the price of all features.
BUDGET_SHARES = (0.15, 0.4)


class Table(NamedTuple):
    """Features, class indices and feature costs of a table."""

    name: str
    x: Rows
    y: Labels
    costs: FeatureCosts


class Mean(NamedTuple):
    """Mean of one value per row, and its standard error."""

    value: float
    error: float

    @classmethod
    def of_rows(cls, values: NDArray[np.float64]) -> Mean:
        """Compute mean and standard error of independent values."""
        return cls(float(values.mean()), float(values.std() / np.sqrt(len(values))))

    def text(self) -> str:
        """Format mean and standard error in percentage points."""
        return f"{100 * self.value:+.2f} ± {100 * self.error:.2f}"


# -- the splits ----------------------------------------------------------------------------


def read_table(name: str) -> Table:
    """Load a table without the classes that have fewer than 0.5 % of its rows."""
    dataset = load(name if name in datasets.bundled_names() else problems.data_file(name))
    _, y, counts = np.unique(dataset.y, return_inverse=True, return_counts=True)
    if name == "letter":  # with 26 classes, this table would take half of the total time
        return Table(name, dataset.X, (dataset.y >= 13).astype(np.int64), dataset.feature_costs)
    has_rows = counts[y] >= len(y) / 200
    labels = np.unique(y[has_rows], return_inverse=True)[1].astype(np.int64)
    return Table(name, dataset.X[has_rows], labels, dataset.feature_costs)


def splits(table: Table) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield training and test rows of five splits with disjoint test rows."""
    folds = StratifiedKFold(N_SPLITS, shuffle=True, random_state=0).split(table.x, table.y)
    # a small table uses all of its rows in each split; a large one has rows for separate splits
    if len(table.y) <= 4 * MAX_TRAINING_ROWS:
        for train, test in folds:
            yield (
                (
                    train
                    if len(train) <= MAX_TRAINING_ROWS
                    else _sample(table, train, MAX_TRAINING_ROWS)
                ),
                test,
            )
        return
    for _, block in folds:
        train, test = train_test_split(
            block,
            train_size=min(MAX_TRAINING_ROWS, 2 * len(block) // 3),
            stratify=table.y[block],
            random_state=0,
        )
        yield train, test[:MAX_TEST_ROWS]


def _sample(table: Table, rows: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    sample, _ = train_test_split(rows, train_size=size, stratify=table.y[rows], random_state=0)
    return np.asarray(sample, np.intp)


# -- one split -----------------------------------------------------------------------------


def measure_split(split: Split) -> dict[str, Any]:
    """Fit the system and the recipes; return figures of the test rows as JSON values."""
    start_time = time.process_time()
    system = gw.StagedCascade(feature_costs=split.costs, random_state=split.seed)
    system.fit(split.x, split.y)
    seconds = time.process_time() - start_time
    # the promise, and the high-cost model compared with plain models
    cloud_hits = split.hits(system.classes_[system.high_cost_model_.labels(split.x_test)])
    check = _promise_check(system, split)
    loss = cloud_hits - split.hits(system.predict(split.x_test))
    row_differences: dict[str, list[float]] = {
        f"f0 beside {name}": (cloud_hits - split.hits(answers)).tolist()
        for name, answers in _plain_model_answers(split).items()
    }
    # the system compared with the recipes at each budget
    budget_shares: dict[str, list[float]] = {"system": [], **{name: [] for name in RECIPES}}
    differences: dict[str, list[NDArray[np.float64]]] = {name: [] for name in RECIPES}
    for share in BUDGET_SHARES:
        budget = share * split.costs.total
        answers, cost = _system_answers(system, split, budget)
        budget_shares["system"].append(cost / budget)
        for name, recipe in RECIPES.items():
            recipe_answers, recipe_cost = recipe(split, budget)
            budget_shares[name].append(recipe_cost / budget)
            differences[name].append(split.hits(answers) - split.hits(recipe_answers))
    row_differences |= {
        f"beside {name}": np.mean(rows, axis=0).tolist() for name, rows in differences.items()
    }
    return {
        "rows": row_differences,
        "loss": loss.tolist(),
        "cost_share": float(system.cost(split.x_test).mean() / split.costs.total),
        "f0": system.high_cost_model_.kind,
        "f0_accuracy": float(cloud_hits.mean()),
        "verdict": check.verdict,
        "said": next(line for line in check.lines() if line.startswith(("kept", "not kept"))),
        "spent": {name: float(np.mean(shares)) for name, shares in budget_shares.items()},
        "cpu_s": round(seconds, 1),
    }


def _promise_check(system: gw.StagedCascade, split: Split) -> PromiseCheck:
    """Check the promise on the test rows like ``gatewise train``."""
    answers = np.searchsorted(system.classes_, system.predict(split.x_test))
    rows = UnseenRows(
        truth=np.searchsorted(system.classes_, split.y_test).astype(np.int64),
        answers=answers.astype(np.int64),
        reference=system.high_cost_model_.labels(split.x_test),
        costs=system.cost(split.x_test),
        is_offloaded=system.offload(split.x_test),
        weights=np.ones(len(answers)),
        splitter=RowSplitter(len(answers)),
    )
    return PromiseCheck.of_system(system, rows)


def _system_answers(
    system: gw.StagedCascade, split: Split, budget: float
) -> tuple[NDArray[Any], float]:
    """Return labels and mean cost at a budget; if none fits, use the most frequent class."""
    try:
        affordable_system = system.at(budget=budget)
    except InputError:
        return np.full(len(split.y_test), np.bincount(split.y).argmax()), 0.0
    return affordable_system.predict(split.x_test), float(
        affordable_system.cost(split.x_test).mean()
    )


def _plain_model_answers(split: Split) -> dict[str, NDArray[Any]]:
    """Predict with three plain models on all features."""
    models: dict[str, ClassifierMixin] = {
        "LightGBM": make_booster(),
        "extra-trees": ExtraTreesClassifier(300, random_state=split.seed),
        "SVM": make_pipeline(StandardScaler(), SVC(C=10.0)),
    }
    return {
        name: model.fit(split.x, split.y).predict(split.x_test) for name, model in models.items()
    }


# -- all splits ----------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the five splits of each table, or read them from the cache."""
    names = ("sonar", "wine") if options.quick else TABLES
    return {"tables": {name: _measure_table(name) for name in names}}


def _measure_table(name: str) -> dict[str, Any]:
    table = read_table(name)
    version = code_version("benchmarks.bench_promises")
    results = []
    for number, (train, test) in enumerate(splits(table)):
        rows = table.x[train], table.y[train], table.x[test], table.y[test]
        split = Split(*rows, table.costs, number)
        path = CACHE / "promises" / f"{name}.{number}.{version}.json"
        if not path.is_file():
            note(f"{name}, split {number + 1}: {len(train)} training, {len(test)} test rows")
        results.append(read_or_compute(path, partial(measure_split, split)))
    return _table_figures(table, results)


def _table_figures(table: Table, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures of a table over the test rows of all its splits."""
    promises = []
    for result in results:
        loss = Mean.of_rows(np.array(result["loss"]))
        # within two standard errors of the promise, and the rounding of a mean
        is_kept = loss.value <= MAX_LOSS + 2 * loss.error + 1e-9
        promises.append(
            {
                "loss": loss.value,
                "error": loss.error,
                "kept": is_kept,
                "verdict": result["verdict"],
                "said": result["said"],
                "admitted": is_kept or result["verdict"] != "kept",
            }
        )
    differences = {
        key: Mean.of_rows(np.concatenate([result["rows"][key] for result in results]))
        for key in results[0]["rows"]
    }
    mean_keys = ("f0_accuracy", "cost_share", "cpu_s")
    return {
        "train": min(len(table.y) * 4 // 5, MAX_TRAINING_ROWS),
        "test": sum(len(result["loss"]) for result in results),
        "features": table.x.shape[1],
        "classes": int(table.y.max()) + 1,
        "promises": promises,
        "loss": Mean.of_rows(np.concatenate([result["loss"] for result in results]))._asdict(),
        "differences": {key: mean._asdict() for key, mean in differences.items()},
        "spent": {
            name: float(np.mean([result["spent"][name] for result in results]))
            for name in results[0]["spent"]
        },
        "f0": [result["f0"] for result in results],
        **{key: float(np.mean([result[key] for result in results])) for key in mean_keys},
    }


# -- the page ------------------------------------------------------------------------------


def page(figures: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    tables = figures["tables"]
    return [
        "# Promises on real tables",
        "",
        f"`make bench-promises` writes this page. Each of {len(tables)} tables has five splits "
        f"with at most {MAX_TRAINING_ROWS} training rows, and no row is a test row twice. Prices "
        "are those of the table, or 1 per feature. Letters are A to M against N to Z. Classes "
        "with fewer than 0.5 % of the rows are left out. Differences are in points of accuracy, "
        "paired by row, ± one standard error.",
        "",
        *_recipe_lines(tables),
        "",
        *_promise_lines(tables),
        "",
        *_model_lines(tables),
    ]


def _promise_lines(tables: Mapping[str, Any]) -> list[str]:
    promises = [promise for table in tables.values() for promise in table["promises"]]
    n_kept = sum(promise["kept"] for promise in promises)
    broken_promises = [promise for promise in promises if not promise["kept"]]
    n_admitted = sum(promise["admitted"] for promise in broken_promises)
    rows = [
        (
            name,
            f"{table['features']}",
            f"{table['classes']}",
            f"{table['train']}",
            f"{table['test']}",
            Mean(**table["loss"]).text(),
            f"{100 * table['cost_share']:.0f} %",
            f"{sum(promise['kept'] for promise in table['promises'])} of {N_SPLITS}",
        )
        for name, table in tables.items()
    ]
    header = ("table", "features", "classes", "training", "test", "loss", "cost", "kept")
    return [
        "## The default promise",
        "",
        f"The system promises at most {100 * MAX_LOSS:.0f} point of accuracy less than the "
        f"high-cost model. It keeps this promise within two standard errors in {n_kept} of "
        f"{len(promises)} splits. In {n_admitted} of the other {len(broken_promises)}, the last "
        "lines of `gatewise train` say that the promise was not kept. The cost of the system is "
        "in percent of the price of all features.",
        "",
        *harness.table_lines(header, rows),
    ]


def _model_lines(tables: Mapping[str, Any]) -> list[str]:
    prefix = "f0 beside "
    rows = []
    tables_behind = []
    for name, table in tables.items():
        means = {
            key.removeprefix(prefix): Mean(**mean)
            for key, mean in table["differences"].items()
            if key.startswith(prefix)
        }
        best_model = min(means, key=lambda model: means[model].value)
        if means[best_model].value < -means[best_model].error:
            tables_behind.append(name)
        accuracy = f"{100 * table['f0_accuracy']:.2f}"
        rows.append((name, accuracy, best_model, *(mean.text() for mean in means.values())))
    plain_names = [key.removeprefix(prefix) for key in _difference_keys(tables, prefix)]
    header = ("table", "accuracy", "best plain model", *(f"minus {name}" for name in plain_names))
    names_text = f": {', '.join(tables_behind)}" if tables_behind else ""
    return [
        "## The built-in high-cost model",
        "",
        "The high-cost model is compared with LightGBM with its default settings, 300 extra-trees "
        "and a scaled SVM (C = 10). The test rows choose the best of these three, and the "
        f"high-cost model is more than a standard error behind it on {len(tables_behind)} of "
        f"{len(tables)} tables{names_text}.",
        "",
        *harness.table_lines(header, rows),
    ]


def _recipe_lines(tables: Mapping[str, Any]) -> list[str]:
    prefix = "beside "
    shares = " and ".join(f"{100 * share:.0f} %" for share in BUDGET_SHARES)
    lines = [
        "## Ten lines by hand",
        "",
        f"Figures are means of two budgets, {shares} of the price of all features. *Few features* "
        "is LightGBM on the most important features that the budget pays for. *Small and big* is "
        "such a model for half of the budget, with a threshold on its probability, before LightGBM "
        "on all features. A win or a loss is a difference of more than one standard error.",
        "",
    ]
    outcomes = []
    rows = []
    for name, table in tables.items():
        means = [Mean(**table["differences"][prefix + recipe]) for recipe in RECIPES]
        table_outcomes = [_outcome(mean) for mean in means]
        outcomes.append(table_outcomes)
        spent_text = ", ".join(f"{100 * share:.0f}" for share in table["spent"].values())
        cells = [
            f"{mean.text()} {outcome}" for mean, outcome in zip(means, table_outcomes, strict=True)
        ]
        rows.append((name, *cells, spent_text))
    for number, recipe in enumerate(RECIPES):
        column = [table_outcomes[number] for table_outcomes in outcomes]
        counts = ", ".join(
            f"{column.count(outcome)} {outcome}" for outcome in ("win", "even", "loss")
        )
        lines += [f"Against *{recipe}*: {counts}.", ""]
    header = ("table", *(f"minus {recipe}" for recipe in RECIPES), "% of budget spent")
    return [*lines, *harness.table_lines(header, rows)]


def _difference_keys(tables: Mapping[str, Any], prefix: str) -> list[str]:
    differences = next(iter(tables.values()))["differences"]
    return [key for key in differences if key.startswith(prefix)]


def _outcome(mean: Mean) -> str:
    if abs(mean.value) <= mean.error:
        return "even"
    return "win" if mean.value > 0 else "loss"


BENCHMARK = harness.Benchmark(
    name="promises",
    quick_help="measure only sonar and wine",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
