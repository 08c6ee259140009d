"""Latency and throughput of a cloud worker, compared with a bare broker and onnxruntime.

    python -m benchmarks.bench_cloud [--quick]

Broker, workers and the client share the cores of the machine. Figures that are compared are
measured alternately in one run, so that other load on the machine affects all of them. The
high-cost model is a support vector machine with an RBF kernel. Measurements of the transport alone
use a logistic regression. Both models are fitted on scikit-learn's digits. The results are
cloud.json and cloud.md in benchmarks/results; ``--quick`` writes them into .bench-cache/quick.
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
"""Training rows of a quick run."""

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
    """Measure all figures, and compare them with the targets."""
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
    """Measure all figures: times in microseconds, rates per second."""
    turns, n_single, n_batches, paced_seconds = (2, 40, 60, 3.0) if quick else (7, 300, 600, 15.0)
    path, linear, X = _bundles(folder, QUICK_TRAIN if quick else None)
    model = CloudModel.from_bundle(path)
    figures: dict[str, Any] = {"features": X.shape[1], "n_train": len(X)}
    with MosquittoBroker() as broker, connected(broker.port) as client:
        echoes: list[float] = []
        trips: list[float] = []
        trips_svm: list[float] = []
        model_rates: list[float] = []
        worker_rates: list[float] = []
        # one worker, in turns with the broker's echo and with onnxruntime
        with _workers([path, linear], broker.url, 1):
            for name in ("svm", "linear"):
                client.turns(payloads(X, 1, 50, model=name))
            for _ in range(turns):
                messages = payloads(X, 1, n_single, model="linear")
                echoes += client.echoes(messages[0], n_single)
                trips += client.turns(messages)
                trips_svm += client.turns(payloads(X, 1, n_single, model="svm"))
                model_rates.append(_model_rate(model, X, n_batches))
                messages = payloads(X, ROWS, n_batches, model="svm")
                worker_rates.append(ROWS * n_batches / client.flood(messages, WINDOW))
                note(
                    f"echo {1e6 * np.median(echoes):.0f} us, round trip "
                    f"{1e6 * np.median(trips):.0f} us, onnxruntime {model_rates[-1]:.0f}/s, "
                    f"worker {worker_rates[-1]:.0f}/s"
                )
            half_rate = 0.5 * float(np.median(worker_rates)) / ROWS
            n_messages = max(50, int(half_rate * paced_seconds))
            messages = payloads(X, ROWS, n_messages, model="svm")
            seconds = client.paced(messages, half_rate)
        # single instances by a worker and by the bare responder
        singles = payloads(X, 1, n_single * turns, model="linear")
        rates: dict[str, list[float]] = {"worker": [], "bare": []}
        for _ in range(1 if quick else 3):
            with _workers([linear], broker.url, 1):
                client.turns(singles[:50])
                rates["worker"].append(len(singles) / client.flood(singles, WINDOW))
            with _bare(broker.port):
                client.turns(singles[:50])
                rates["bare"].append(len(singles) / client.flood(singles, WINDOW))
            note(f"worker {rates['worker'][-1]:.0f}, bare {rates['bare'][-1]:.0f} messages/s")
        with _bare(broker.port):
            figures["bare_us"] = _spread(client.turns(singles))
            bare_seconds = client.paced(messages, half_rate)
        figures["echo_us"] = _spread(echoes)
        figures["round_trip_us"] = _spread(trips)
        figures["round_trip_svm_us"] = _spread(trips_svm)
        figures["onnxruntime_per_second"] = _rates(model_rates)
        figures["worker_per_second"] = _rates(worker_rates)
        figures["worker_single_per_second"] = _rates(rates["worker"])
        figures["bare_single_per_second"] = _rates(rates["bare"])
        figures["half_load"] = {"messages_per_second": round(half_rate, 1), **_spread(seconds)}
        figures["bare_half_load"] = _spread(bare_seconds)
        # one worker process and two of them
        count_rates = []
        for _ in range(1 if quick else 3):
            for count in (1, 2):
                with _workers([path], broker.url, count):
                    _flood(client, X, ROWS, 20)
                    rate = ROWS * n_batches / _flood(client, X, ROWS, n_batches)
                count_rates.append((count, rate))
                note(f"{count} worker(s): {rate:.0f}/s")
        figures["by_workers"] = {
            str(count): _rates([rate for c, rate in count_rates if c == count]) for count in (1, 2)
        }
    figures["round_trip_over_echo"] = round(float(np.median(trips) / np.median(echoes)), 2)
    # Compare the two figures of each turn, because the load of the machine changes between turns.
    shares = np.array(worker_rates) / np.array(model_rates)
    figures["share_of_onnxruntime"] = round(float(np.median(shares)), 3)
    echo_shares = np.array(rates["worker"]) / np.array(rates["bare"])
    figures["share_of_echo"] = round(float(np.median(echo_shares)), 3)
    bound = max(5.0 * float(np.median(seconds)), float(np.quantile(bare_seconds, 0.99)))
    figures["p99_over_bound"] = round(float(np.quantile(seconds, 0.99)) / bound, 2)
    return figures


def _bundles(folder: Path, rows: int | None) -> tuple[Path, Path, Any]:
    """Pack the bundles svm and linear; return them and the first `rows` instances, or all."""
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
    """Run worker processes, which are ready when the block begins."""
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
    """Run a responder that returns each request unchanged."""
    command = [sys.executable, "-m", "benchmarks.cloud.bare", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def _model_rate(model: CloudModel, X: Any, count: int) -> float:
    """Instances per second of onnxruntime without a worker, in batches of 16."""
    batches = [np.ascontiguousarray(X[np.arange(i, i + ROWS) % len(X)]) for i in range(count)]
    started = time.perf_counter()
    for batch in batches:
        model._backend.run(batch)
    return ROWS * count / (time.perf_counter() - started)


def _flood(client: Any, X: Any, rows: int, count: int) -> float:
    return float(client.flood(payloads(X, rows, count, model="svm"), WINDOW))


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


def page(results: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    f = results["figures"]
    lines = [
        "# A cloud worker",
        "",
        f"{results['machine']['cores']} cores shared by mosquitto, the worker and the sender; "
        f"high-cost models: {results['settings']['f0']}. `make bench-cloud` writes this page.",
        "",
        *harness.targets_table(TARGETS, results),
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
    quick="few messages",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
