"""Latency, decisions and lost requests of ``gatewise serve``, compared with a plain server.

    python -m benchmarks.bench_serve [--quick]

``gatewise serve`` runs a cascade on Breast Cancer Wisconsin in a separate process. The plain server
is a process of starlette and uvicorn that runs the graph of the first stage in onnxruntime. Rows
that the first stage answers are sent to both servers alternately over persistent connections. The
answers to all rows, some with noise, are then compared with the decisions that ``gatewise verify``
computes. Last, the worker is killed while clients send requests. The results are serve.json and
serve.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness

PACKAGES = ("gatewise", "starlette", "uvicorn", "onnxruntime", "msgspec", "numpy")
TARGETS: harness.Targets = {
    "p50_ratio": ("p50 of `serve` / p50 of the plain server", "at most", 1.1),
    "differing": ("rows with another decision than `gatewise verify` computes", "at most", 0),
    "lost": ("requests without an answer while a worker is killed", "at most", 0),
}
#: Requests that warm up both servers before the measurement.
N_WARM_UP = 200
#: Clients that send at the same time, so that requests wait for each other in the server.
N_CLIENTS = 4
#: Program of the plain server.
PLAIN_SERVER = """\
import json, socket, sys
import numpy as np, onnxruntime, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
graph, inputs = sys.argv[1], json.loads(sys.argv[2])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
async def infer(request):
    (tensor,) = (await request.json())["inputs"]
    x = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    (margins,) = session.run(None, {"x": np.ascontiguousarray(x[:, inputs])})
    p = 1 / (1 + np.exp(-margins[:, 0].astype(float)))
    shares = np.column_stack([1 - p, p]).ravel().tolist()
    labels = (margins[:, 0] > 0).astype(int)
    n = len(x)
    return JSONResponse({"model_name": "small", "outputs": [
        {"name": "label", "datatype": "INT64", "shape": [n], "data": labels.tolist()},
        {"name": "probabilities", "datatype": "FP32", "shape": [n, 2], "data": shares},
    ]})
app = Starlette(routes=[Route("/v2/models/small/infer", infer, methods=["POST"])])
config = uvicorn.Config(app, port=0, log_level="warning")
listener = config.bind_socket()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvicorn's own
listener.listen()
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(config).run(sockets=[listener])
"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Fit, pack and serve a cascade; measure latency, decisions and losses."""
    with tempfile.TemporaryDirectory() as folder:
        bundle, rows = packed_cascade(Path(folder))
        latencies = _latencies(bundle, rows, 500 if options.quick else 5000)
        n_rows = 1000 if options.quick else 10_000
        n_differing = _count_differing(bundle, rows, n_rows)
        kill_figures = _kill_worker(bundle, rows, 400 if options.quick else 4000)
    figures = {
        "p50_ratio": round(latencies["serve"]["p50_us"] / latencies["plain"]["p50_us"], 3),
        "differing": n_differing,
        "lost": kill_figures["asked"] - sum(kill_figures["routes"].values()),
    }
    return {
        "latencies": latencies,
        "compared": n_rows,
        "killed": kill_figures,
        "figures": figures,
        "holds": harness.targets_met(TARGETS, figures),
    }


def packed_cascade(folder: Path) -> tuple[Any, NDArray[np.float32]]:
    """Fit a cascade on half of Breast Cancer Wisconsin; return its bundle and the other rows."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    from gatewise_export import pack
    from gatewise_training import FeatureCosts, StagedCascade

    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, _ = train_test_split(X.astype(np.float32), y, random_state=0)
    system = StagedCascade(feature_costs=FeatureCosts.uniform(X.shape[1]), random_state=0)
    system.fit(X_train, y_train)
    return pack(system, folder / "bundle", sample=X_test[:32], name="cancer"), X_test


@contextmanager
def _server(*command: str) -> Iterator[str]:
    """Run a server process and yield the address that it prints."""
    with harness.python_process(*command, ready_text="http://") as (_, line):
        yield line[line.index("http://") + 7 :].strip().split("/")[0]


def _infer_body(rows: NDArray[np.float32]) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(rows.shape)}
    return json.dumps({"inputs": [tensor | {"data": rows.ravel().tolist()}]}).encode()


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    return answer


def _latencies(bundle: Any, rows: NDArray[np.float32], n_requests: int) -> dict[str, Any]:
    """Measure latencies of both servers, called in turn, for rows that the first stage answers."""
    from gatewise_export.packing.verification import graph_decisions

    manifest = bundle.manifest
    easy_rows = rows[graph_decisions(bundle, rows).exits == 0]
    inputs = json.dumps(manifest.stage_inputs(0).tolist())
    graph = str(Path(bundle.path) / manifest.stages[0].graph)
    seconds: dict[str, list[float]] = {"plain": [], "serve": []}
    with ExitStack() as stack:
        plain_address = stack.enter_context(_server("-c", PLAIN_SERVER, graph, inputs))
        serve_address = stack.enter_context(
            _server("-m", "gatewise", "serve", str(bundle.path), "--port", "0")
        )
        servers = {
            "plain": (http.client.HTTPConnection(plain_address), "/v2/models/small/infer"),
            "serve": (
                http.client.HTTPConnection(serve_address),
                f"/v2/models/{manifest.name}/infer",
            ),
        }
        for i in range(n_requests + N_WARM_UP):
            body = _infer_body(easy_rows[i % len(easy_rows)][np.newaxis])
            for name, (connection, path) in servers.items():
                start_time = time.perf_counter()
                _post(connection, path, body)
                if i >= N_WARM_UP:
                    seconds[name].append(time.perf_counter() - start_time)
    return {
        name: {
            f"p{percentile}_us": round(1e6 * float(np.percentile(times, percentile)), 1)
            for percentile in (50, 95, 99)
        }
        for name, times in seconds.items()
    }


def _count_differing(bundle: Any, rows: NDArray[np.float32], n_rows: int) -> int:
    """Count rows whose route or class differs from the decision that ``verify`` computes."""
    from gatewise_cloud import MosquittoBroker, Worker
    from gatewise_export.packing.verification import graph_decisions

    rng = np.random.default_rng(0)
    deviations = rows.std(axis=0)
    noise = rng.normal(size=(n_rows, rows.shape[1])).astype(np.float32) * deviations * 0.2
    noisy_rows = np.concatenate([rows, rows[rng.integers(len(rows), size=n_rows)] + noise])[:n_rows]
    outcome = graph_decisions(bundle, noisy_rows)
    n_stages = len(bundle.manifest.stages)
    path = f"/v2/models/{bundle.manifest.name}/infer"
    classes: list[int] = []
    routes: list[str] = []
    with MosquittoBroker() as broker, Worker(bundle.path, broker.url):
        command = ("-m", "gatewise", "serve", str(bundle.path), "--port", "0")
        with _server(*command, "--broker", broker.url, "--deadline-ms", "30000") as address:
            connection = http.client.HTTPConnection(address)
            for start in range(0, n_rows, 50):
                answer = json.loads(
                    _post(connection, path, _infer_body(noisy_rows[start : start + 50]))
                )
                outputs = {output["name"]: output["data"] for output in answer["outputs"]}
                classes += outputs["class_index"]
                routes += outputs["route"]
    expected_routes = np.where(outcome.exits < n_stages, "edge", "cloud")
    is_different = (np.array(routes) != expected_routes) | (np.array(classes) != outcome.labels)
    return int(is_different.sum())


def _kill_worker(bundle: Any, rows: NDArray[np.float32], n_requests: int) -> dict[str, Any]:
    """Send requests from four clients, and kill the worker after half of the answers."""
    from gatewise_cloud import MosquittoBroker
    from gatewise_export.packing.verification import graph_decisions

    outcome = graph_decisions(bundle, rows)
    hard_rows = rows[outcome.exits == len(bundle.manifest.stages)]
    mixed_rows = np.concatenate([hard_rows, rows[: 3 * len(hard_rows)]])
    routes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    latencies: list[float] = []
    counter_lock = threading.Lock()
    is_halfway = threading.Event()

    def send_requests(address: str, client_number: int) -> None:
        connection = http.client.HTTPConnection(address)
        for i in range(client_number, n_requests, N_CLIENTS):
            body = json.dumps({"instances": [mixed_rows[i % len(mixed_rows)].tolist()]}).encode()
            (answer,) = json.loads(_post(connection, "/predict", body))["predictions"]
            with counter_lock:
                routes[answer["route"]] += 1
                phase = "after" if process.returncode is not None else "before"
                reasons[f"{phase} the kill, {answer['route']}: {answer['reason']}"] += 1
                latencies.append(answer["latency_ms"])
            if sum(routes.values()) > n_requests // 2:
                is_halfway.set()

    with MosquittoBroker() as broker:
        worker = [sys.executable, "-m", "gatewise", "cloud", str(bundle.path)]
        command = ("-m", "gatewise", "serve", str(bundle.path), "--port", "0")
        with (
            subprocess.Popen([*worker, "--broker", broker.url]) as process,
            _server(*command, "--broker", broker.url, "--deadline-ms", "500") as address,
        ):
            _wait_for_worker(address, hard_rows[0])
            threads = [
                threading.Thread(target=send_requests, args=(address, client_number))
                for client_number in range(N_CLIENTS)
            ]
            for thread in threads:
                thread.start()
            is_halfway.wait()
            process.kill()
            process.wait()
            for thread in threads:
                thread.join()
    return {
        "asked": n_requests,
        "routes": dict(routes),
        "reasons": dict(reasons),
        "largest_latency_ms": round(max(latencies), 1),
        "deadline_ms": 500,
    }


def _wait_for_worker(address: str, row: NDArray[np.float32]) -> None:
    """Send a hard row until the worker answers it; raise TimeoutError after 60 attempts."""
    connection = http.client.HTTPConnection(address)
    body = json.dumps({"instances": [row.tolist()]}).encode()
    for _ in range(60):
        (answer,) = json.loads(_post(connection, "/predict", body))["predictions"]
        if answer["route"] == "cloud":
            return
        time.sleep(0.1)
    raise TimeoutError("no worker answered in time")


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    kills = results["killed"]
    routes = ", ".join(f"{count} {route}" for route, count in kills["routes"].items())
    latencies = [
        (
            name,
            *(f"{results['latencies'][name][key]:.0f}" for key in ("p50_us", "p95_us", "p99_us")),
        )
        for name in ("plain", "serve")
    ]
    return [
        "# A cascade as a service",
        "",
        "`make bench-serve` writes this page. `gatewise serve` serves a cascade on Breast Cancer",
        "Wisconsin. The plain server (starlette, uvicorn) runs the graph of the first stage in",
        "onnxruntime. Both receive the same requests of the Open Inference Protocol in turn. Each",
        "request has one row, which the first stage answers.",
        "",
        *harness.table_lines(("server", "p50, us", "p95", "p99"), latencies),
        "",
        f"The decisions on {results['compared']:,} rows, some with noise, were compared with those",
        "that `gatewise verify` computes. The worker was killed while four clients sent",
        f"{kills['asked']:,} requests. The routes of the answers are: {routes}. The slowest answer",
        f"took {kills['largest_latency_ms']:.0f} ms; the deadline was {kills['deadline_ms']} ms.",
        "",
        *harness.targets_table(TARGETS, results),
    ]


BENCHMARK = harness.Benchmark(
    name="serve",
    quick_help="send a tenth of the requests",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
