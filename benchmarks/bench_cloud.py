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
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cloud.load import connected, payloads
from gatewise.console import note
from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_cloud.models.cloud_model import CloudModel

PACKAGES = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
#: Instances of a request, as many as a worker's largest batch by default.
ROWS_PER_MESSAGE = 16
#: Requests without a response at the same time, so that the worker never waits for the client.
MAX_PENDING = 32
#: Training rows of a quick run.
N_QUICK_ROWS = 400

TARGETS: dict[str, tuple[str, str, float]] = {
    "round_trip_over_echo": ("round trip / echo of the broker", "at most", 2.5),
    "share_of_onnxruntime": ("instances per second / those of onnxruntime", "at least", 0.6),
    "share_of_echo": ("messages per second / those of a bare responder", "at least", 0.6),
    "p99_over_bound": (
        "p99 at half load / the larger of 5 p50 and the p99 of a bare responder",
        "at most",
        1.0,
    ),
    "share_with_archive": ("instances per second with an archive / without", "at least", 0.95),
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all figures, and compare them with the targets."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_figures(Path(folder), quick=options.quick)
    settings = {
        "rows_per_message": ROWS_PER_MESSAGE,
        "window": MAX_PENDING,
        "f0": "SVC(rbf) and LogisticRegression, digits",
    }
    holds = harness.targets_met(TARGETS, figures)
    return {"settings": settings, "figures": figures, "holds": holds}


# -- measuring ---------------------------------------------------------------------------------


def measure_figures(folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure all figures: times in microseconds, rates per second."""
    n_turns, n_single, n_batches, paced_duration_s = (
        (1, 40, 60, 1.0) if quick else (7, 300, 600, 15.0)
    )
    svm_path, linear_path, X = _pack_models(folder, N_QUICK_ROWS if quick else None)
    model = CloudModel.from_bundle(svm_path)
    batches = payloads(X, ROWS_PER_MESSAGE, n_batches, model="svm")
    seconds: dict[str, list[float]] = {"echo": [], "trip": [], "svm trip": []}
    rates: dict[str, list[float]] = {}
    with MosquittoBroker() as broker, connected(broker.port) as client:
        bare_command = ("-m", "benchmarks.cloud.bare", str(broker.port))

        def add_rate(name: str, messages: list[bytes], n_rows: int) -> None:
            """Send all messages, and add the instances per second to those of a name."""
            rate = n_rows * len(messages) / client.time_flood(messages, MAX_PENDING)
            rates.setdefault(name, []).append(rate)
            note(f"{name}: {rate:.0f}/s")

        # measure one worker, the broker's echo and onnxruntime in turn
        with _run_workers([svm_path, linear_path], broker.url, 1):
            for name in ("svm", "linear"):
                client.time_turns(payloads(X, 1, 50, model=name))
            for _ in range(n_turns):
                messages = payloads(X, 1, n_single, model="linear")
                seconds["echo"] += client.time_echoes(messages[0], n_single)
                seconds["trip"] += client.time_turns(messages)
                seconds["svm trip"] += client.time_turns(payloads(X, 1, n_single, model="svm"))
                rates.setdefault("model", []).append(_measure_model_rate(model, X, n_batches))
                add_rate("worker", batches, ROWS_PER_MESSAGE)
            half_rate = 0.5 * float(np.median(rates["worker"])) / ROWS_PER_MESSAGE
            n_messages = max(50, int(half_rate * paced_duration_s))
            messages = payloads(X, ROWS_PER_MESSAGE, n_messages, model="svm")
            seconds["half load"] = client.time_paced(messages, half_rate)
        # single instances by a worker and by the bare responder
        singles = payloads(X, 1, n_single * n_turns, model="linear")
        for _ in range(1 if quick else 3):
            with _run_workers([linear_path], broker.url, 1):
                client.time_turns(singles[:50])
                add_rate("single", singles, 1)
            with harness.python_process(*bare_command):
                client.time_turns(singles[:50])
                add_rate("bare single", singles, 1)
        with harness.python_process(*bare_command):
            seconds["bare"] = client.time_turns(singles)
            seconds["bare half load"] = client.time_paced(messages, half_rate)
        # one worker process and two of them
        for _ in range(1 if quick else 3):
            for n_workers in (1, 2):
                with _run_workers([svm_path], broker.url, n_workers):
                    client.time_flood(batches[:20], MAX_PENDING)
                    add_rate(f"{n_workers} workers", batches, ROWS_PER_MESSAGE)
        # a worker with an archive and without one; the order alternates, because a run may affect
        # the next one, and five times the messages let the archive write shards
        for turn in range(n_turns):
            for has_archive in (False, True) if turn % 2 else (True, False):
                options = ("--keep", str(folder / "archive")) if has_archive else ()
                with _run_workers([svm_path], broker.url, 1, options):
                    client.time_flood(batches[:20], MAX_PENDING)
                    messages = payloads(X, ROWS_PER_MESSAGE, 5 * n_batches, model="svm")
                    add_rate("archive" if has_archive else "no archive", messages, ROWS_PER_MESSAGE)
    return {
        "features": X.shape[1],
        "n_train": len(X),
        **_summarise_measurements(seconds, rates, half_rate),
    }


def _summarise_measurements(
    seconds: Mapping[str, Sequence[float]], rates: Mapping[str, Sequence[float]], half_rate: float
) -> dict[str, Any]:
    """Summarise times and rates by their names; `half_rate` is in messages per second."""
    max_p99_seconds = max(
        5.0 * float(np.median(seconds["half load"])),
        float(np.quantile(seconds["bare half load"], 0.99)),
    )
    p99_seconds = float(np.quantile(seconds["half load"], 0.99))

    def compare_rates(name: str, reference: str) -> float:
        """Compare figures turn by turn, because the load of the machine changes between turns."""
        return round(float(np.median(np.array(rates[name]) / np.array(rates[reference]))), 3)

    return {
        "bare_us": _latency_quantiles(seconds["bare"]),
        "echo_us": _latency_quantiles(seconds["echo"]),
        "round_trip_us": _latency_quantiles(seconds["trip"]),
        "round_trip_svm_us": _latency_quantiles(seconds["svm trip"]),
        "onnxruntime_per_second": _summarise_rates(rates["model"]),
        "worker_per_second": _summarise_rates(rates["worker"]),
        "worker_single_per_second": _summarise_rates(rates["single"]),
        "bare_single_per_second": _summarise_rates(rates["bare single"]),
        "half_load": {
            "messages_per_second": round(half_rate, 1),
            **_latency_quantiles(seconds["half load"]),
        },
        "bare_half_load": _latency_quantiles(seconds["bare half load"]),
        "by_workers": {str(n): _summarise_rates(rates[f"{n} workers"]) for n in (1, 2)},
        "archive_per_second": _summarise_rates(rates["archive"]),
        "no_archive_per_second": _summarise_rates(rates["no archive"]),
        "share_with_archive": compare_rates("archive", "no archive"),
        "round_trip_over_echo": round(
            float(np.median(seconds["trip"]) / np.median(seconds["echo"])), 2
        ),
        "share_of_onnxruntime": compare_rates("worker", "model"),
        "share_of_echo": compare_rates("single", "bare single"),
        "p99_over_bound": round(p99_seconds / max_p99_seconds, 2),
    }


def _pack_models(folder: Path, max_rows: int | None) -> tuple[Path, Path, Any]:
    """Pack the bundles svm and linear; return them and the first `max_rows` instances, or all."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    from gatewise_export import pack
    from gatewise_training import StagedCascade

    X, y = load_digits(return_X_y=True)
    X, y = X[:max_rows].astype(np.float32), y[:max_rows]
    models = {
        "svm": SVC(gamma="scale", C=10.0),
        "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    }
    for name, model in models.items():
        system = StagedCascade(
            model, n_stages=1, effort="low", families=("linear",), random_state=0
        ).fit(X, y)
        pack(system, folder / name, sample=X[:32], name=name)
    return folder / "svm", folder / "linear", X


@contextmanager
def _run_workers(
    paths: Sequence[Path], url: str, n_workers: int, options: Sequence[str] = ()
) -> Iterator[None]:
    """Run worker processes, which are ready when the block begins."""
    command = ["-m", "gatewise", "cloud", *map(str, paths), "--broker", url, "--json", *options]
    with ExitStack() as stack:
        for _ in range(n_workers):
            stack.enter_context(harness.python_process(*command, environment=harness.SINGLE_THREAD))
        yield


def _measure_model_rate(model: CloudModel, X: Any, n_batches: int) -> float:
    """Measure the instances per second of onnxruntime in batches of 16, without a worker."""
    batches = [
        np.ascontiguousarray(X[np.arange(start, start + ROWS_PER_MESSAGE) % len(X)])
        for start in range(n_batches)
    ]
    start_time = time.perf_counter()
    for batch in batches:
        model._backend.run(batch)
    return ROWS_PER_MESSAGE * n_batches / (time.perf_counter() - start_time)


def _latency_quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    p50, p95, p99 = (
        round(1e6 * float(quantile), 1) for quantile in np.quantile(seconds, [0.5, 0.95, 0.99])
    )
    return {"p50": p50, "p95": p95, "p99": p99, "n": len(seconds)}


def _summarise_rates(rates: Sequence[float]) -> dict[str, Any]:
    return {
        "median": round(float(np.median(rates))),
        "low": round(min(rates)),
        "high": round(max(rates)),
        "n": len(rates),
    }


# -- figures -----------------------------------------------------------------------------------


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    figures = results["figures"]
    lines = [
        "# A cloud worker",
        "",
        "`make bench-cloud` writes this page. Mosquitto, the worker and the sender share "
        f"{results['machine']['cores']} cores. High-cost models: {results['settings']['f0']}.",
        "",
        *harness.targets_table(TARGETS, results),
    ]
    half_load = figures["half_load"]
    latencies = {
        "a bare client that receives its own message from the broker": figures["echo_us"],
        "another process with a bare client that returns the request": figures["bare_us"],
        "a request of one instance, linear model": figures["round_trip_us"],
        "a request of one instance, support vector machine": figures["round_trip_svm_us"],
        f"16 instances, {half_load['messages_per_second']:g} messages per second": half_load,
        "16 instances at the same rate, bare client": figures["bare_half_load"],
    }
    header = ("one at a time, QoS 1, us", "p50", "p95", "p99")
    rows = [
        (title, *(f"{spread[key]:g}" for key in header[1:])) for title, spread in latencies.items()
    ]
    lines += ["", *harness.table_lines(header, rows)]
    rates = {
        "onnxruntime alone, batches of 16": figures["onnxruntime_per_second"],
        "one worker, 16 in a message": figures["worker_per_second"],
        "one worker, 1 in a message, linear model": figures["worker_single_per_second"],
        "the bare client, 1 in a message": figures["bare_single_per_second"],
        "one worker process, 16 in a message": figures["by_workers"]["1"],
        "two worker processes, 16 in a message": figures["by_workers"]["2"],
        "one worker without an archive, in turn with the next": figures["no_archive_per_second"],
        "one worker with an archive (`--keep`)": figures["archive_per_second"],
    }
    header = ("instances per second", "median", "low", "high")
    rows = [(title, *(str(rate[key]) for key in header[1:])) for title, rate in rates.items()]
    return [*lines, "", *harness.table_lines(header, rows)]


BENCHMARK = harness.Benchmark(
    name="cloud", quick_help="few messages", packages=PACKAGES, measure=measure, page=page
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
