"""Benchmark of high-cost models of all kinds, and of estimates for models fitted on the same rows.

    python -m benchmarks.bench_models [--quick] [--only table,leak]

`table`: models are fitted on 700 rows of digits. Each model becomes the high-cost model of a
cascade. The cascade is packed and verified on 600 other rows. A worker then answers 40 of these
rows over a broker, and the benchmark counts the answers that equal those of the model. Before the
fit, a cascade refuses models that cannot be packed. Models of PyTorch are skipped unless torch and
onnxscript are installed.

`leak`: three models are fitted on the same rows of six tables that the cascade is fitted on. The
benchmark compares the accuracy that the cascade estimates with its accuracy on the other half of
the table, in standard errors. Half of the cascades have a guarantee of the offload rate. The
results are high_cost_models.json and high_cost_models.md in benchmarks/results; ``--quick`` writes
them into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

import gatewise as gw
from benchmarks import harness
from benchmarks.data import given_models
from benchmarks.data.fetching import find_file
from gatewise.console import note
from gatewise.errors import InputError
from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_cloud.models.backend_choice import backend_factory
from gatewise_export.packing.verification import verify
from gatewise_training.data.datasets import load

PARTS = ("table", "leak")
PACKAGES = (
    "gatewise",
    "numpy",
    "scikit-learn",
    "lightgbm",
    "xgboost-cpu",
    "catboost",
    "skl2onnx",
    "onnxruntime",
    "polars",
    "torch",
    "onnxscript",
)
#: Rows that a worker answers over a broker.
N_LIVE_ROWS = 40
#: Share of values that are removed for models that accept missing values.
MISSING_SHARE = 0.1
TABLES = ("breast_cancer", "digits", "wine", "statlog_heart", "sonar", "thyroid")
#: Largest number of rows of a table, of which half are test rows.
MAX_ROWS = 2000
#: Models that classify nearly every training row correctly.
OVERFITTED_MODELS: dict[str, Any] = {
    "random forest": RandomForestClassifier(50, random_state=0),
    "boosting": HistGradientBoostingClassifier(max_iter=40, random_state=0),
    "tree": DecisionTreeClassifier(random_state=0),
}

Rows = NDArray[np.float32]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Serve the models by a worker, and compare estimates with test rows."""
    figures: dict[str, Any] = {}
    if "table" in options.only:
        figures["models"] = _measure_models(options)
    if "leak" in options.only:
        figures["leak"] = _measure_leaks(options)
    return figures


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    lines = ["# High-cost models", ""]
    lines += _models_page(results["models"]) if "models" in results else []
    return lines + (_leak_page(results["leak"]) if "leak" in results else [])


# -- the table of models -------------------------------------------------------------------


def _measure_models(options: argparse.Namespace) -> list[dict[str, Any]]:
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X_missing = X.copy()
    X_missing[np.random.default_rng(0).random(X.shape) < MISSING_SHARE] = np.nan
    train, validation, test = slice(0, 700), slice(700, 1100), slice(1100, 1700)
    models = []
    n_models = 2 if options.quick else None
    for name, make_model in list(given_models.CLASSIFIERS.items())[:n_models]:
        make_frame = given_models.FRAMES.get(name)
        if make_frame is given_models.polars_frame and find_spec("polars") is None:
            note(f"skipped {name}: polars is not installed (pip install polars)")
            continue
        rows = X[train] if make_frame is None else make_frame(X[train])
        model = make_model().fit(rows, y[train])
        models.append(_measure_model(name, model, X, y, (train, None, test), rows=rows))
    files = [*given_models.FILES.items(), *given_models.BOOSTERS.items()]
    if find_spec("torch") is None:
        note("skipped PyTorch's models: torch is not installed (pip install torch onnxscript)")
    else:
        files += given_models.TORCH.items()
    for name, make_file in files[:n_models]:
        table = X_missing if name in given_models.WITH_MISSING_VALUES else X
        model = make_file(table[train], y[train])
        models.append(_measure_model(name, model, table, y, (train, validation, test)))
    with given_models.service():
        for name, function in (
            ("Python function", "python:benchmarks.data.given_models:probabilities"),
            ("function that calls a service", "python:benchmarks.data.given_models:ask_service"),
        ):
            row_slices = train, validation, test
            models.append(_measure_model(name, function, X, y, row_slices, backend=function))
    for name, make_model in given_models.REFUSED.items():
        models.append(_measure_model(name, make_model(), X, y, (train, None, test)))
    return models


def _measure_model(
    name: str,
    model: Any,
    X: Rows,
    y: NDArray[Any],
    row_slices: tuple[slice, slice | None, slice],
    *,
    rows: Any = None,
    backend: str | None = None,
) -> dict[str, Any]:
    train, validation, test = row_slices
    rows = X[train] if rows is None else rows
    has_missing = bool(np.isnan(X).any())
    validation_rows = None if validation is None else (X[validation], y[validation])
    note(f"high-cost model: {name}")
    system = gw.ConfidenceCascade(
        model,
        low_cost_model="boosting" if has_missing else "linear",
        n_subsets=1,
        offload_rate=0.4,
        allow_missing=has_missing,
        random_state=0,
    )
    # fit, pack and verify, with the time of each step
    start_time = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            system.fit(rows, y[train], validation=validation_rows)
    except InputError as error:
        return {"model": name, "refused": str(error), "fit": time.perf_counter() - start_time}
    fit_end = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bundle = gw.pack(system, Path(folder) / "bundle", sample=X[train][:64], name="digits")
        pack_end = time.perf_counter()
        report = verify(system, bundle, X[test])
        verify_end = time.perf_counter()
        expected_labels = system.high_cost_model_.labels(X[test][:N_LIVE_ROWS])
        live_labels = _live_labels(bundle, X[test][:N_LIVE_ROWS], backend)
        n_bytes = bundle.manifest.files[bundle.manifest.cloud.file].size
    n_equal = sum(
        label is not None and label == int(expected)
        for label, expected in zip(live_labels, expected_labels, strict=True)
    )
    return {
        "model": name,
        "fit": fit_end - start_time,
        "pack": pack_end - fit_end,
        "verify": verify_end - pack_end,
        "rows": report.rows,
        "differing": max(
            report.differing_decisions, report.differing_labels, report.cloud_label_differences
        ),
        "probability_difference": report.cloud_probability_max_difference,
        "live": len(live_labels),
        "live_equal": n_equal,
        "bytes": n_bytes,
        "runs": bundle.manifest.cloud.backend or bundle.manifest.cloud.kind,
    }


def _live_labels(bundle: gw.Bundle, X: Rows, backend: str | None) -> list[int | None]:
    """Ask a worker as a device and return the labels; None for a row that the device answers."""
    make_backend = None if backend is None else backend_factory(backend)
    with MosquittoBroker() as broker, gw.Worker(bundle, broker.url, backend=make_backend):
        link = gw.MqttLink(broker.url)
        with gw.Device(bundle, link=link, policy="cloud-only", deadline_ms=8000) as device:
            link.connect()
            answers = [device.answer(row) for row in X]
    return [answer.class_index if answer.route == "cloud" else None for answer in answers]


def _models_page(models: Sequence[dict[str, Any]]) -> list[str]:
    header = ("model", "fit s", "pack s", "verify s", "differing of", "live", "a worker runs")
    rows = []
    for model in models:
        if "refused" in model:
            reason = (
                model["refused"].removeprefix("high_cost_model cannot be packed: ").split(";")[0]
            )
            rows.append(
                (model["model"], f"{model['fit']:.3f}", "", "", "", "", f"refused: {reason}")
            )
            continue
        rows.append(
            (
                model["model"],
                f"{model['fit']:.1f}",
                f"{model['pack']:.1f}",
                f"{model['verify']:.2f}",
                f"{model['differing']} of {model['rows']}",
                f"{model['live_equal']} of {model['live']}",
                f"{model['runs'].split('127.')[0]}, {model['bytes'] / 1024:.0f} KiB",
            )
        )
    return [
        f"`make bench-models` writes this page. {len(models)} models are the high-cost model of a "
        "`ConfidenceCascade` on digits, which is fitted on 700 rows. On 600 rows, the decisions, "
        "the labels and the high-cost model's labels of the bundle are compared with Python's. A "
        f"worker answers {N_LIVE_ROWS} rows over a broker, and its labels must equal the model's. "
        "The fit of a classifier includes five clones. A model that cannot be packed is refused "
        "before the fit.",
        "",
        *harness.table_lines(header, rows),
        "",
    ]


# -- models fitted on rows of the table ----------------------------------------------------


def _measure_leaks(options: argparse.Namespace) -> list[dict[str, Any]]:
    leaks = []
    for source in TABLES[:2] if options.quick else TABLES:
        dataset = load(find_file(source) or source)
        rows = np.random.default_rng(0).permutation(len(dataset.y))[:MAX_ROWS]
        X, X_test, y, y_test = train_test_split(
            dataset.X[rows],
            dataset.y[rows],
            test_size=0.5,
            stratify=dataset.y[rows],
            random_state=0,
        )
        for name, unfitted_model in OVERFITTED_MODELS.items():
            note(f"leak: {source}, {name}")
            model = unfitted_model.fit(X, y)
            leaks += [
                {
                    "table": source,
                    "model": name,
                    **_measure_leak(model, X, y, X_test, y_test, guarantee),
                }
                for guarantee in (None, 0.9)
            ]
    return leaks


def _measure_leak(
    model: Any,
    X: Rows,
    y: NDArray[Any],
    X_test: Rows,
    y_test: NDArray[Any],
    guarantee: float | None,
) -> dict[str, Any]:
    """Compare the accuracy that a cascade estimates for a model fitted on `X` with test rows."""
    system = gw.ConfidenceCascade(
        model,
        low_cost_model="linear",
        n_subsets=4,
        random_state=0,
        guarantee=guarantee,
        offload_rate=None if guarantee is None else 0.5,
    )
    system.fit(X, y)
    # with a guarantee, a fifth of the rows are calibration rows
    n_estimation_rows = len(X) if guarantee is None else len(X) - len(X) * 4 // 5
    # standard error of a difference of two shares p of n and m rows:
    # sqrt(p (1 - p) (1 / n + 1 / m))
    promised_accuracy = system.operating_point_.accuracy
    test_accuracy = float(np.mean(system.predict(X_test) == y_test))
    error = np.sqrt(test_accuracy * (1 - test_accuracy) * (1 / n_estimation_rows + 1 / len(X_test)))
    # a guarantee of the loss is refused, because f0 may have seen the rows
    is_refused = False
    if guarantee is not None:
        try:
            system.at(max_loss=0.05)
        except InputError as refusal:
            is_refused = "may have seen" in str(refusal)
    return {
        "guarantee": guarantee,
        "seen": float(model.score(X, y)),
        "alone": float(model.score(X_test, y_test)),
        "promised": promised_accuracy,
        "test": test_accuracy,
        "errors": float((promised_accuracy - test_accuracy) / max(error, 1 / len(X_test))),
        "offload_rate": system.operating_point_.offload_rate,
        "max_loss_refused": is_refused,
    }


def _leak_page(leaks: Sequence[dict[str, Any]]) -> list[str]:
    header = (
        "table",
        "model",
        "model, fitted rows",
        "model, test rows",
        "guarantee",
        "cascade, estimate",
        "cascade, test rows",
        "difference in standard errors",
    )
    rows = [
        (
            leak["table"],
            leak["model"],
            f"{leak['seen']:.3f}",
            f"{leak['alone']:.3f}",
            "" if leak["guarantee"] is None else "offload rate",
            f"{leak['promised']:.3f}",
            f"{leak['test']:.3f}",
            f"{leak['errors']:+.1f}",
        )
        for leak in leaks
    ]
    lines = [
        "## Fitted on the rows of the table",
        "",
        "The table has the accuracy of the model on the rows that it was fitted on and on test "
        "rows, and the accuracy of the cascade as its fit estimates it and on test rows.",
        "",
        *harness.table_lines(header, rows),
        "",
    ]
    for guarantee in (None, 0.9):
        guarantee_leaks = [leak for leak in leaks if leak["guarantee"] == guarantee]
        n_within = sum(abs(leak["errors"]) <= 2 for leak in guarantee_leaks)
        condition = "without a guarantee" if guarantee is None else "with one on the offload rate"
        lines.append(
            f"- within 2 standard errors {condition}: {n_within} of {len(guarantee_leaks)}"
        )
    refusals = [leak["max_loss_refused"] for leak in leaks if leak["guarantee"] is not None]
    lines.append(f"- a guaranteed `max_loss` refused: {sum(refusals)} of {len(refusals)}")
    return lines


BENCHMARK = harness.Benchmark(
    name="high_cost_models",
    quick_help="four models and two tables",
    packages=PACKAGES,
    measure=measure,
    page=page,
    parts=PARTS,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
