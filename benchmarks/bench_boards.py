"""Flash, RAM, instructions and decisions of generated C on emulated microcontrollers.

    python -m benchmarks.bench_boards [--quick]

Gatewise, emlearn and m2cgen write the same forest on scikit-learn's digits as C. emlearn and m2cgen
come from PyPI and are installed in a separate environment. The C is compiled with -Os for a
Cortex-M0+, a Cortex-M4 and RV32 and runs in qemu, which counts instructions and not cycles. Flash
and RAM are those of the linked program minus those of a program that only reads and writes rows.

Cascades of every kind of model then answer adversarial rows, whose values are thresholds,
neighbouring floats and extremes. The decisions must equal those of Python. Last, the client in C
offloads hard rows to a real worker over a link with delays and cuts. The results are boards.json
and boards.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.bench_serve import packed_cascade
from benchmarks.c99.avr import count_differing_rows
from benchmarks.c99.board_programs import (
    CASCADE_PROGRAM,
    FOREST_PROGRAMS,
    IDLE_PROGRAM,
    run_program,
)
from benchmarks.c99.offload import measure_offload
from benchmarks.cache import CACHE
from gatewise.errors import InputError
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.cascade_reader import cascade_of
from gatewise_export.c99.probes import probe_rows
from gatewise_export.c99.targets import TARGETS as MACHINES
from gatewise_export.c99.writer import write_cascade
from gatewise_export.packing.verification import graph_decisions

PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
PEERS = ("emlearn==0.23.2", "m2cgen==0.10.0")
CHIPS = ("cortex-m0plus", "cortex-m4", "rv32")
N_TREES = 10
#: Rows of digits that the forest is fitted on; the other 597 are answered on the chips.
N_TRAINING_ROWS = 1200
#: A compiler places floats at multiples of this number of bytes.
FLOAT_ALIGNMENT = 4
#: 8-bit chip emulated by simavr.
AVR = "atmega1284p"

TARGETS: harness.Targets = {
    "differing": (
        "adversarial rows decided differently than in Python, over all machines",
        "at most",
        0,
    ),
    "unanswered": ("offloaded rows without exactly one outcome", "at most", 0),
    "wrong": ("answers of the worker with another label than Python's", "at most", 0),
    "late_ms": ("ms from deadline to outcome of the slowest row", "at most", 10),
}


# -- the same forest by three generators -------------------------------------------------------


def _peer_python() -> Path:
    """Install the peers' environment with this scikit-learn; return its interpreter."""
    folder = CACHE / "boards-peers"
    python = folder / "bin/python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        pinned_packages = [
            f"{name}=={version(name)}" for name in ("numpy", "scipy", "scikit-learn")
        ]
        options = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
        subprocess.run([python, *options, *PEERS, *pinned_packages], check=True)
        (folder / "installed").touch()
    return python


def _measure_forest(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure the C of each generator for the forest on each chip."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    forest = RandomForestClassifier(N_TREES, random_state=0).fit(
        X[:N_TRAINING_ROWS], y[:N_TRAINING_ROWS]
    )
    np.savez(folder / "digits.npz", X=X[:N_TRAINING_ROWS], y=y[:N_TRAINING_ROWS], n_trees=N_TREES)
    script = Path(__file__).parent / "c99/peer_forest.py"
    subprocess.run([_peer_python(), script, folder], check=True)
    peers = json.loads((folder / "peers.json").read_text())
    rows = X[N_TRAINING_ROWS:]
    (folder / "rows.bin").write_bytes(rows.tobytes())
    stage = Stage(TreeEnsemble.from_forest(forest), np.arange(64), "identity")
    cascade = Cascade(
        title="digits", stages=(stage,), thresholds=(None,), classes=tuple(range(10)),
        feature_names=tuple(f"p{i}" for i in range(64)), takes_missing=False, offloads=False,
        cloud_takes_missing=False, rows=rows[:0],  # without a self-test
    )  # fmt: skip
    write_cascade(cascade, folder, name="m")
    expected_labels = forest.predict(rows)
    figures: dict[str, Any] = {
        "inner_nodes": sum(tree.tree_.n_leaves - 1 for tree in forest.estimators_)
    }
    flags = ("-I", peers["include"], "-w")
    for chip in CHIPS:
        idle_run = run_program(chip, folder, IDLE_PROGRAM, [])
        for name, answer_code in FOREST_PROGRAMS.items():
            files = ["m.c"] if name == "gatewise" else []
            try:
                run = run_program(chip, folder, answer_code, files, flags)
            except InputError as error:
                figures[f"{chip} {name}"] = {"failed": str(error)[-200:]}
                continue
            labels = np.frombuffer(run.answers, np.uint8)
            figures[f"{chip} {name}"] = {
                "flash": run.flash - idle_run.flash,
                "ram": run.ram - idle_run.ram + run.stack - idle_run.stack,
                "instructions": round(float(run.ticks.mean())),
                "most_instructions": round(float(run.ticks.max())),
                "other_labels": int((labels != expected_labels).sum()),
            }
    return figures, peers["versions"] | {"rows": len(rows)}


# -- adversarial rows --------------------------------------------------------------------------


def _fit_cascades() -> dict[str, Cascade]:
    """Fit a cascade per family on Breast Cancer Wisconsin, and one with missing values."""
    from sklearn.datasets import load_breast_cancer

    from gatewise_training import FeatureCosts, StagedCascade

    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    costs = FeatureCosts.uniform(X.shape[1])
    X_missing = np.where(np.random.default_rng(0).random(X.shape) < 0.05, np.float32(np.nan), X)
    cascades = {}
    for family in ("boosting", "extra-trees", "linear", "svm", "missing"):
        families = ("boosting",) if family == "missing" else (family,)
        system = StagedCascade(
            feature_costs=costs,
            families=families,
            n_stages=2,
            effort="low",
            allow_missing=family == "missing",
            random_state=0,
        ).fit(X_missing if family == "missing" else X, y)
        cascades[family] = replace(cascade_of(system), offloads=True)
    return cascades


def _adversarial_rows(cascade: Cascade, n_rows: int) -> NDArray[np.float32]:
    batches: list[NDArray[np.float32]] = []
    while sum(map(len, batches)) < n_rows:
        batches.append(probe_rows(cascade, seed=len(batches)))
    return np.concatenate(batches)[:n_rows]


def _compare_rows(folder: Path, cascade: Cascade, n_rows: int) -> dict[str, Any]:
    """Count rows whose answer on a machine is not bitwise equal to that of Python."""
    rows = _adversarial_rows(cascade, n_rows)
    (folder / "rows.bin").write_bytes(rows.tobytes())
    # CASCADE_PROGRAM writes these fields for each row, and a byte for each column that stages read.
    layout_columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    n_slots = len(layout_columns)
    sizes = ", ".join(map(str, cascade.stage_n_outputs))
    answer_code = (
        f"#define N_OUTPUTS {sizes}\n#define SUM_OUTPUTS {sum(cascade.stage_n_outputs)}\n"
        + CASCADE_PROGRAM
    )
    expected_answers = cascade.expected_answers(rows)
    outputs = np.concatenate(expected_answers.outputs, axis=1)
    n_padded = n_slots + -n_slots % FLOAT_ALIGNMENT
    fields: list[Any] = [("exit", "<i4"), ("label", "<i4"), ("known", "u1", n_padded)]
    layout = np.dtype([*fields, ("output", "<f4", outputs.shape[1])])
    write_cascade(replace(cascade, rows=rows[:0]), folder, name="m")
    figures: dict[str, Any] = {}
    for machine in ("host", *CHIPS):
        run = run_program(machine, folder, answer_code, ["m.c"])
        answers = np.frombuffer(run.answers, layout)
        has_same_bits = (answers["output"].view("u4") == outputs.view("u4")) | (
            np.isnan(answers["output"]) & np.isnan(outputs)
        )
        is_same = (
            (answers["exit"] == expected_answers.exits)
            & (answers["label"] == expected_answers.labels)
            & (
                answers["known"][:, :n_slots] == expected_answers.is_acquired[:, layout_columns]
            ).all(axis=1)
            & has_same_bits.all(axis=1)
        )
        figures[machine] = {"rows": len(answers), "differing": int(n_rows - is_same.sum())}
    figures[AVR] = _compare_rows_on_avr(folder, cascade, rows)
    return figures


def _compare_rows_on_avr(
    folder: Path, cascade: Cascade, rows: NDArray[np.float32]
) -> dict[str, Any]:
    # emulating a kernel machine takes about 70 ms per row
    is_slow = any(isinstance(stage.model, KernelModel) for stage in cascade.stages)
    rows = rows[: len(rows) // 10] if is_slow else rows
    try:
        n_differing = count_differing_rows(folder, cascade, rows)
    except InputError as error:
        if "too large" not in str(error):
            raise
        return {"failed": "its tables exceed 64 KB"}
    return {"rows": len(rows), "differing": n_differing}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure offloads and the forest, then compare adversarial rows."""
    n_rows = 1000 if options.quick else 10_000
    comparisons: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bundle, rows = _hard_rows(Path(folder), n_rows)
        # Measure deadlines first, while no compiler or qemu uses the cores.
        with ThreadPoolExecutor(2) as threads:
            cbor_run = threads.submit(measure_offload, bundle, rows, json=False)
            json_run = threads.submit(measure_offload, bundle, rows, json=True)
            offloads = {"CBOR": cbor_run.result(), "JSON": json_run.result()}
    with tempfile.TemporaryDirectory() as folder:
        forest, peers = _measure_forest(Path(folder))
    for name, cascade in _fit_cascades().items():
        with tempfile.TemporaryDirectory() as folder:
            comparisons[name] = _compare_rows(Path(folder), cascade, n_rows)
    n_differing = sum(
        comparison.get("differing", 0)
        for comparison_by_machine in comparisons.values()
        for comparison in comparison_by_machine.values()
    )
    figures = {
        "differing": n_differing,
        "unanswered": sum(offload["rows"] - offload["outcomes"] for offload in offloads.values()),
        "wrong": sum(offload["wrong_answers"] for offload in offloads.values()),
        "late_ms": max(
            offload["largest_ms"] - offload["deadline_ms"] for offload in offloads.values()
        ),
    }
    return {
        "forest": forest,
        "peers": peers,
        "compared": comparisons,
        "offloads": offloads,
        "compilers": {name: _compiler_version(name) for name in CHIPS},
        "figures": figures,
        "holds": harness.targets_met(TARGETS, figures),
    }


def _hard_rows(folder: Path, n_rows: int) -> tuple[Bundle, NDArray[np.float32]]:
    """Pack the cascade of `bench_serve`; return it and rows that no stage answers."""
    bundle, rows = packed_cascade(folder)
    rng = np.random.default_rng(0)
    # noise of a fifth of a feature's standard deviation makes more rows near the thresholds
    noisy_rows = rows[rng.integers(len(rows), size=20_000)]
    noisy_rows = noisy_rows + (0.2 * rows.std(axis=0) * rng.normal(size=noisy_rows.shape)).astype(
        np.float32
    )
    hard_rows = noisy_rows[graph_decisions(bundle, noisy_rows).exits == len(bundle.manifest.stages)]
    return bundle, hard_rows[np.arange(n_rows) % len(hard_rows)]


def _comparison_text(run: Mapping[str, Any]) -> str:
    return run["failed"] if "failed" in run else f"{run['differing']} of {run['rows']:,}"


def _compiler_version(chip: str) -> str:
    command = [MACHINES[chip].compiler[0], "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s+", " ", output.splitlines()[0])


def page(results: Mapping[str, Any]) -> list[str]:
    """Return the lines of the page."""
    forest = results["forest"]
    forest_rows = []
    for chip in CHIPS:
        for name in FOREST_PROGRAMS:
            run = forest[f"{chip} {name}"]
            cells = (
                (run["failed"], "", "", "")
                if "failed" in run
                else (
                    f"{run['flash']:,}",
                    f"{run['ram']:,}",
                    f"{run['instructions']:,}",
                    str(run["other_labels"]),
                )
            )
            forest_rows.append((chip, name, *cells))
    comparison_rows = [
        (name, *(map(_comparison_text, runs.values())))
        for name, runs in results["compared"].items()
    ]
    offload_rows = []
    for form, run in results["offloads"].items():
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(run["kinds"].items()))
        counts = (f"{run['cuts']:,}", f"{run['retried']:,}", f"{run['largest_ms']} ms")
        offload_rows.append((form, f"{run['outcomes']:,} of {run['rows']:,}", kinds, *counts))
    versions = ", ".join(
        f"{name} {number}" for name, number in results["peers"].items() if name != "rows"
    )
    return [
        "# Microcontrollers: flash, RAM and instructions",
        "",
        "`make bench-boards` writes this page. Gatewise, emlearn and m2cgen write the same random "
        f"forest as C ({versions}). It has {N_TREES} trees with {forest['inner_nodes']:,} inner "
        "nodes and classifies scikit-learn's digits (64 features, 10 classes). The C is compiled "
        "with `-Os` and linked without unused sections. Flash and RAM are in bytes. They include "
        "the stack and the library's functions, but not those of a program that only reads "
        "rows. qemu counts instructions per row, not cycles. The last column counts, "
        f"among {results['peers']['rows']} test rows, those with another label than "
        "scikit-learn's; emlearn rounds probabilities to 8 bits.",
        "",
        *harness.table_lines(
            ("chip", "C of", "flash", "RAM", "instructions", "other labels"), forest_rows
        ),
        "",
        "The next table counts rows that differ from Python in the exit stage, the label, the "
        "acquired features or a bit of the outputs. The rows lie at the thresholds of cascades, at "
        "the neighbouring floats, at zeros of both signs, at subnormal numbers and at extremes.",
        "",
        *harness.table_lines(("stages", "this computer", *CHIPS, AVR), comparison_rows),
        "",
        "The client in C (a POSIX program with libmosquitto) offloaded rows that no stage answers, "
        "through a real mosquitto to a real worker. The link delayed data by up to 20 ms and was "
        "cut every 0.2 to 1.2 s; the deadline was 200 ms. A row without "
        "an answer keeps its fallback.",
        "",
        *harness.table_lines(
            ("messages", "outcomes", "kinds", "cuts", "retried", "slowest"), offload_rows
        ),
        "",
        *harness.targets_table(TARGETS, results),
    ]


BENCHMARK = harness.Benchmark(
    name="boards",
    quick_help="compare 1,000 rows per cascade",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
