"""What a cloud worker carries on this machine, against a bare broker and a bare onnxruntime.

    python -m benchmarks.bench_cloud [--quick]

Broker, workers and the sender share the machine's cores. Compared figures are taken in turns of
one run, so that what else the machine does meets all of them. The high-cost models are a support
vector machine with an RBF kernel and, where the way counts and not the model, a logistic
regression, both on scikit-learn's digits. Writes cloud.json and cloud.md into
benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cloud.load import connected, payloads
from gatewise.console import note
from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_cloud.models.cloud_model import CloudModel

PACKAGES = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
ROWS = 16
WINDOW = 32
QUICK_TRAIN = 400
"""Rows that the models of a quick look are fitted on."""

TARGETS: dict[str, tuple[str, str, float]] = {
    "round_trip_over_echo": ("round trip over the broker's own echo", "at most", 2.5),
    "share_of_onnxruntime": ("instances a second over onnxruntime's alone", "at least", 0.6),
    "share_of_echo": ("messages a second over a bare responder's", "at least", 0.6),
    "p99_over_bound": (
        "p99 at half load over the larger of 5 p50 and a bare responder's p99",
        "at most",
        1.0,
    ),
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take all figures, and compare them with the targets."""
    with tempfile.TemporaryDirectory() as folder:
        figures = take_figures(Path(folder), quick=options.quick)
    settings = {
        "rows_per_message": ROWS,
        "window": WINDOW,
        "f0": "SVC(rbf) and LogisticRegression, digits",
    }
    return {"settings": settings, "figures": figures, "holds": harness.holds(TARGETS, figures)}


# -- measuring ---------------------------------------------------------------------------------


def take_figures(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Take all figures: times in microseconds unless named otherwise, rates per second."""
    turns, single, many, lasting = (2, 40, 60, 3.0) if quick else (7, 300, 600, 15.0)
    path, linear, X = _bundles(folder, QUICK_TRAIN if quick else None)
    model = CloudModel.from_bundle(path)
    figures: dict[str, Any] = {"features": X.shape[1], "n_train": len(X)}
    with MosquittoBroker() as broker, connected(broker.port) as asker:
        echoes: list[float] = []
        trips: list[float] = []
        trips_svm: list[float] = []
        alone: list[float] = []
        carried: list[float] = []
        with _workers([path, linear], broker.url, 1):
            for name in ("svm", "linear"):
                asker.turns(payloads(X, 1, 50, model=name))
            for _ in range(turns):
                messages = payloads(X, 1, single, model="linear")
                echoes += asker.echoes(messages[0], single)
                trips += asker.turns(messages)
                trips_svm += asker.turns(payloads(X, 1, single, model="svm"))
                alone.append(_alone(model, X, many))
                messages = payloads(X, ROWS, many, model="svm")
                carried.append(ROWS * many / asker.flood(messages, WINDOW))
                note(
                    f"echo {1e6 * np.median(echoes):.0f} us, round trip "
                    f"{1e6 * np.median(trips):.0f} us, onnxruntime {alone[-1]:.0f}/s, "
                    f"worker {carried[-1]:.0f}/s"
                )
            half = 0.5 * float(np.median(carried)) / ROWS
            messages = payloads(X, ROWS, max(50, int(half * lasting)), model="svm")
            seconds = asker.paced(messages, half)
        singles = payloads(X, 1, single * turns, model="linear")
        rates: dict[str, list[float]] = {"worker": [], "bare": []}
        for _ in range(1 if quick else 3):
            with _workers([linear], broker.url, 1):
                asker.turns(singles[:50])
                rates["worker"].append(len(singles) / asker.flood(singles, WINDOW))
            with _bare(broker.port):
                asker.turns(singles[:50])
                rates["bare"].append(len(singles) / asker.flood(singles, WINDOW))
            note(f"worker {rates['worker'][-1]:.0f}, bare {rates['bare'][-1]:.0f} messages/s")
        with _bare(broker.port):
            figures["bare_us"] = _spread(asker.turns(singles))
            bare_seconds = asker.paced(messages, half)
        figures["echo_us"] = _spread(echoes)
        figures["round_trip_us"] = _spread(trips)
        figures["round_trip_svm_us"] = _spread(trips_svm)
        figures["onnxruntime_per_second"] = _rates(alone)
        figures["worker_per_second"] = _rates(carried)
        figures["worker_single_per_second"] = _rates(rates["worker"])
        figures["bare_single_per_second"] = _rates(rates["bare"])
        figures["half_load"] = {"messages_per_second": round(half, 1), **_spread(seconds)}
        figures["bare_half_load"] = _spread(bare_seconds)
        several = []
        for _ in range(1 if quick else 3):
            for count in (1, 2):
                with _workers([path], broker.url, count):
                    _flood(asker, X, ROWS, 20)
                    rate = ROWS * many / _flood(asker, X, ROWS, many)
                several.append((count, rate))
                note(f"{count} worker(s): {rate:.0f}/s")
        figures["by_workers"] = {
            str(count): _rates([rate for c, rate in several if c == count]) for count in (1, 2)
        }
    figures["round_trip_over_echo"] = round(float(np.median(trips) / np.median(echoes)), 2)
    # Turn by turn, since the machine is not the same from turn to turn.
    shares = np.array(carried) / np.array(alone)
    figures["share_of_onnxruntime"] = round(float(np.median(shares)), 3)
    echo_shares = np.array(rates["worker"]) / np.array(rates["bare"])
    figures["share_of_echo"] = round(float(np.median(echo_shares)), 3)
    bound = max(5.0 * float(np.median(seconds)), float(np.quantile(bare_seconds, 0.99)))
    figures["p99_over_bound"] = round(float(np.quantile(seconds, 0.99)) / bound, 2)
    return figures


def _bundles(folder: Path, rows: int | None) -> tuple[Path, Path, Any]:
    """Two bundles, svm and linear, and the instances: the first rows, or all."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    from gatewise_export import pack
    from gatewise_training import StagedCascade

    X, y = load_digits(return_X_y=True)
    X, y = X[:rows].astype(np.float32), y[:rows]
    models = {
        "svm": SVC(gamma="scale", C=10.0),
        "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    }
    for name, f0 in models.items():
        system = StagedCascade(
            f0, n_stages=1, effort="low", families=("linear",), random_state=0
        ).fit(X, y)
        pack(system, folder / name, sample=X[:32], name=name)
    return folder / "svm", folder / "linear", X


@contextmanager
def _workers(paths: Sequence[Path], url: str, count: int) -> Iterator[None]:
    """Run workers in processes of their own; ready when the block begins."""
    command = [sys.executable, "-m", "gatewise", "cloud", *map(str, paths), "--broker", url]
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    processes = [
        subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


@contextmanager
def _bare(port: int) -> Iterator[None]:
    """Run a responder that does no work."""
    command = [sys.executable, "-m", "benchmarks.cloud.bare", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def _alone(model: CloudModel, X: Any, count: int) -> float:
    """Instances a second of onnxruntime alone, on batches of 16."""
    batches = [np.ascontiguousarray(X[np.arange(i, i + ROWS) % len(X)]) for i in range(count)]
    started = time.perf_counter()
    for batch in batches:
        model._backend.run(batch)
    return ROWS * count / (time.perf_counter() - started)


def _flood(asker: Any, X: Any, rows: int, count: int) -> float:
    return float(asker.flood(payloads(X, rows, count, model="svm"), WINDOW))


def _spread(seconds: Sequence[float]) -> dict[str, Any]:
    p50, p95, p99 = (round(1e6 * float(q), 1) for q in np.quantile(seconds, [0.5, 0.95, 0.99]))
    return {"p50": p50, "p95": p95, "p99": p99, "n": len(seconds)}


def _rates(rates: Sequence[float]) -> dict[str, Any]:
    return {
        "median": round(float(np.median(rates))),
        "low": round(min(rates)),
        "high": round(max(rates)),
        "n": len(rates),
    }


# -- figures -----------------------------------------------------------------------------------


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    f = found["figures"]
    lines = [
        "# A cloud worker",
        "",
        f"{found['machine']['cores']} cores shared by mosquitto, the worker and the sender; "
        f"high-cost models: {found['settings']['f0']}. `make bench-cloud` writes this page.",
        "",
        *harness.targets_table(TARGETS, found),
        "",
        "| one at a time, QoS 1, us | p50 | p95 | p99 |",
        "| --- | --- | --- | --- |",
    ]
    rows = {
        "the broker's echo, bare client": f["echo_us"],
        "a bare client in a process of its own that sends the request back": f["bare_us"],
        "a request of one instance, linear model": f["round_trip_us"],
        "the same, support vector machine": f["round_trip_svm_us"],
        f"16 instances, {f['half_load']['messages_per_second']:g} messages/s": f["half_load"],
        "the same by the bare client": f["bare_half_load"],
    }
    lines += [f"| {t} | {v['p50']:g} | {v['p95']:g} | {v['p99']:g} |" for t, v in rows.items()]
    lines += ["", "| instances a second | median | low | high |", "| --- | --- | --- | --- |"]
    rates = {
        "onnxruntime alone, batches of 16": f["onnxruntime_per_second"],
        "one worker, 16 in a message": f["worker_per_second"],
        "one worker, 1 in a message, linear model": f["worker_single_per_second"],
        "the bare client, 1 in a message": f["bare_single_per_second"],
        "one worker process, 16 in a message": f["by_workers"]["1"],
        "two worker processes, 16 in a message": f["by_workers"]["2"],
    }
    lines += [f"| {t} | {v['median']} | {v['low']} | {v['high']} |" for t, v in rates.items()]
    return lines


BENCHMARK = harness.Benchmark(
    name="cloud",
    description=__doc__,
    quick="few messages: only a look",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
