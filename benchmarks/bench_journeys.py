"""Count calls, files and moves between files in four journeys through the code by a profiler.

A call is a call of a function of the project. A move is a call of, or a return to, a function in
another file; a reader must then open that file. The four journeys are a local answer of four
stages, opening a bundle and making a device, training a bundle from a table, and a simulation of
1,000 devices. Each one is counted in a new process, in which no earlier journey has filled a cache
or imported a module. The page also has the figures of an earlier version.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks import harness

#: Rows of digits that fit the cascade; the journeys read the other 597.
N_TRAINING_ROWS = 1200


class CallCounter:
    """Counter of calls, files and moves in a ``with`` block, on its thread and on new threads."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.n_moves = 0
        self.files: set[str] = set()
        self._last_file = ""

    def __enter__(self) -> CallCounter:
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _count(self, frame: FrameType | None, event: str, _argument: object) -> None:
        # a return moves the reader to the caller's file
        if event == "return" and frame is not None:
            frame = frame.f_back
        elif event != "call":
            return
        if frame is None or not frame.f_globals.get("__name__", "").startswith("gatewise"):
            return
        file_name = frame.f_code.co_filename
        self.n_calls += event == "call"
        self.n_moves += file_name != self._last_file
        self._last_file = file_name
        self.files.add(file_name)

    def figures(self) -> dict[str, int]:
        """Get the numbers of calls, files and moves."""
        return {"calls": self.n_calls, "files": len(self.files), "moves": self.n_moves}


def pack_digits(folder: Path) -> Path:
    """Pack a cascade of four linear stages that answers all rows of digits on the device."""
    import gatewise as gw

    X, y = load_digits(return_X_y=True)
    system = gw.StagedCascade(
        ExtraTreesClassifier(20, random_state=0),
        n_stages=4,
        families=("linear",),
        effort="low",
        offload_rate=0.0,
        random_state=0,
    ).fit(X[:N_TRAINING_ROWS], y[:N_TRAINING_ROWS])
    gw.pack(system, folder / "digits", sample=X[:32])
    return folder / "digits"


def write_wine(folder: Path) -> Path:
    """Write the table of wines as CSV."""
    wine = load_wine()
    path = folder / "wine.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace("/", "_") for name in wine.feature_names), "label"])
        writer.writerows([*row, label] for row, label in zip(wine.data, wine.target, strict=True))
    return path


def count_answer(folder: Path) -> dict[str, int]:
    """Count the answer to a row that the last of four stages answers."""
    import gatewise as gw

    rows = np.asarray(load_digits().data[N_TRAINING_ROWS:], np.float32)
    with gw.Device(pack_digits(folder)) as device:
        answers = [device.answer(row) for row in rows]
        # stage 3 is the last, so that its answers pass through all stages
        row = next(row for row, answer in zip(rows, answers, strict=True) if answer.stage == 3)
        with CallCounter() as counter:
            device.answer(row)
    return counter.figures()


def count_open(folder: Path) -> dict[str, int]:
    """Count opening a bundle of 64 features and making a device of it."""
    import gatewise as gw

    path = pack_digits(folder)
    gw.Device(gw.Bundle.open(path)).close()  # imports all modules
    with CallCounter() as counter:
        device = gw.Device(gw.Bundle.open(path))
    device.close()
    return counter.figures()


def count_train(folder: Path) -> dict[str, int]:
    """Count the command that trains a bundle from a table."""
    from gatewise import cli

    table = write_wine(folder)
    with CallCounter() as counter:
        assert cli.main(["train", str(table), "--out", str(folder / "wine")]) == 0
    return counter.figures()


def count_simulate(folder: Path) -> dict[str, int]:
    """Count the command that simulates 1,000 devices for 10 minutes."""
    from gatewise import cli

    X, y = load_digits(return_X_y=True)
    rows = folder / "rows.npz"
    np.savez(rows, X=X[N_TRAINING_ROWS:], y=y[N_TRAINING_ROWS:])
    command = ["simulate", str(pack_digits(folder)), "--data", str(rows), "--devices", "1000"]
    command += ["--time", "10min", "--out", str(folder / "out")]
    with CallCounter() as counter:
        assert cli.main(command) == 0
    return counter.figures()


#: Titles and functions of the journeys.
JOURNEYS: dict[str, tuple[str, Callable[[Path], dict[str, int]]]] = {
    "answer": ("a local answer of four stages", count_answer),
    "open": ("`Bundle.open` and `Device`", count_open),
    "train": ("a table's rows to a bundle", count_train),
    "simulate": ("`simulate` of 1,000 devices", count_simulate),
}


def count_journey(name: str) -> dict[str, int]:
    """Count a journey in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return JOURNEYS[name][1](Path(folder))


def measure(_options: harness.Options) -> dict[str, Any]:
    """Count all journeys; figures of an earlier version stay."""
    counts = {name: harness.call_in_process(count_journey, name) for name in JOURNEYS}
    return harness.merge_parts(harness.RESULTS / "journeys.json", {"now": counts})


def page(results: Mapping[str, Any]) -> list[str]:
    """Make the table of journeys, with the figures of both versions side by side."""
    rows = [
        (title, label, *(f"{results[label][name][key]:,}" for key in ("calls", "files", "moves")))
        for name, (title, _) in JOURNEYS.items()
        for label in ("before", "now")
    ]
    header = ("journey", "code", "calls", "files", "moves")
    lines = ["# Four journeys through the code", "", "`make bench-journeys` counts them.", ""]
    return [*lines, *harness.table_lines(header, rows)]


BENCHMARK = harness.Benchmark(
    name="journeys",
    quick_help="the same journeys, written into .bench-cache/quick",
    packages=("gatewise", "numpy", "scikit-learn"),
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
