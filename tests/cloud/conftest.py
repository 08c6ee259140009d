"""Tiny real bundles, real brokers, and a device reduced to a paho client."""

import hashlib
import io
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import onnx
import paho.mqtt.client as paho
import pytest
from onnx import TensorProto, helper, numpy_helper
from paho.mqtt.enums import CallbackAPIVersion

from gatewise import decision
from gatewise_cloud.broker.broker import (
    EmbeddedBroker,
    MosquittoBroker,
    find_mosquitto,
    mosquitto_config,
)
from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_edge.link import wire

FEATURES = 4
CLASSES = 3


def until(condition, seconds=10.0, what="it"):
    """Wait until a condition holds; fail when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.005)


# -- bundles -------------------------------------------------------------------------------


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(FEATURES, CLASSES)).astype(np.float32)


# The high-cost model reads the features in another order than the manifest lists them.
CLOUD_W = np.ascontiguousarray(weights()[::-1])


def expected(X):
    """Labels and probabilities of the high-cost model for rows in its own order."""
    margins = np.asarray(X, float) @ CLOUD_W
    exponents = np.exp(margins - margins.max(1, keepdims=True))
    return margins.argmax(1), exponents / exponents.sum(1, keepdims=True)


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, FEATURES)).astype(np.float32)


def _graph(nodes, outputs, constants, inputs=FEATURES):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test"
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def linear_graph(W):
    return _graph(
        [helper.make_node("MatMul", ["x", "W"], ["margins"])],
        [("margins", TensorProto.FLOAT, [None, None])],
        {"W": W},
    )


def classifier_graph(W):
    return _graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["m"]),
            helper.make_node("Softmax", ["m"], ["probabilities"], axis=1),
            helper.make_node("ArgMax", ["m"], ["label"], axis=1, keepdims=0),
        ],
        [("label", TensorProto.INT64, [None]), ("probabilities", TensorProto.FLOAT, [None, None])],
        {"W": W},
    )


def slow_graph(W, size=1024, turns=4, limit=None):
    """The linear graph, after matrix products that depend on x and change nothing.

    With a limit, it fails at run time where a value of x reaches that.
    """
    constants = {
        "W": W,
        "C": np.full((size, size), 1e-4, np.float32),
        "zero": np.float32(0.0),
        "zeros": np.zeros(limit or 1, np.float32),
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["C", "nothing"], ["A0"]),
    ]
    nodes += [helper.make_node("MatMul", [f"A{t}", "C"], [f"A{t + 1}"]) for t in range(turns)]
    nodes += [
        helper.make_node("ReduceSum", [f"A{turns}"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["void"]),
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "zero" if limit is None else "one"], ["scaled"]),
        helper.make_node("Abs", ["scaled"], ["size"]),
        helper.make_node("Cast", ["size"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["zeros", "index"], ["none"]),
        helper.make_node("MatMul", ["x", "W"], ["m"]),
        helper.make_node("Sum", ["m", "void", "none"], ["margins"]),
    ]
    constants["one"] = np.float32(1.0)
    return _graph(nodes, [("margins", TensorProto.FLOAT, [None, None])], constants)


def write_bundle(
    path,
    *,
    name="tiny",
    version="1",
    kind="margins",
    graph=None,
    missing="refused",
    spoil=False,
    has_cloud=True,
):
    """Write a bundle of one stage and a high-cost model that is linear in four features."""
    W = weights()
    cloud = graph or (linear_graph(CLOUD_W) if kind == "margins" else classifier_graph(CLOUD_W))
    stage = linear_graph(W)
    X = np.random.default_rng(1).normal(size=(8, FEATURES)).astype(np.float32)
    margins = X @ W
    exponents = np.exp(margins.astype(float) - margins.max(1, keepdims=True))
    labels = margins.argmax(1).astype(np.int64)
    sample = io.BytesIO()
    np.savez(
        sample,
        X=X,
        stage_0=margins,
        exit=np.ones(8, np.int64),
        label=labels,
        cloud_label=(labels + 1) % CLASSES if spoil else labels,
        cloud_probabilities=(exponents / exponents.sum(1, keepdims=True)).astype(np.float32),
        cost=np.full(8, float(FEATURES)),
    )
    files = {"stage_0.onnx": stage, "sample.npz": sample.getvalue()}
    if has_cloud:
        files["cloud.onnx"] = cloud
    names = [f"f{k}" for k in range(FEATURES)]
    manifest = {
        "schema_version": 1,
        "name": name,
        "version": version,
        "created": "2026-01-01T00:00:00+00:00",
        "min_runtime_version": "0.1.0",
        "task": "classify",
        "classes": ["a", "b", "c"],
        "link": "softmax",
        "features": [{"name": n, "own": 1.0, "group": None} for n in names],
        "groups": [],
        "prices": {"request": 0.0, "byte": 0.0, "evaluation": 0.0},
        "missing": {"stages": missing, "cloud": missing},
        "stages": [
            {
                "file": "stage_0.onnx",
                "kind": "graph",
                "inputs": names,
                "carry": [],
                "tier": "device",
                "bytes": len(stage),
                "link": "softmax",
                "score": "margin",
                "outputs": CLASSES,
            }
        ],
        "cloud": {"file": "cloud.onnx", "inputs": names[::-1], "kind": kind, "link": "softmax"},
        "operating_points": [
            {
                "thresholds": [None],
                "expected_cost": 4.0,
                "accuracy": 1.0,
                "offload_rate": 1.0,
                "guarantee": None,
            }
        ],
        "active": 0,
        "files": {
            file: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for file, content in files.items()
        },
    }
    if not has_cloud:
        manifest["cloud"] = None
        manifest["operating_points"][0]["thresholds"] = [decision.ALWAYS_STOP]
    path.mkdir(parents=True)
    for file, content in files.items():
        (path / file).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture(scope="session")
def tiny():
    """The tools above, for tests (which cannot import this file)."""
    return SimpleNamespace(
        W=CLOUD_W,
        rows=rows,
        expected=expected,
        linear_graph=linear_graph,
        fragile_graph=lambda: slow_graph(CLOUD_W, limit=100),
        write=write_bundle,
    )


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def slow_bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "slow"
    return write_bundle(path, name="slow", graph=slow_graph(CLOUD_W))


@pytest.fixture(scope="session")
def wait_until():
    return until


# -- brokers -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def mosquitto():
    with MosquittoBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(params=["mosquitto", "embedded"])
def any_broker(request):
    return request.getfixturevalue(request.param)


# -- a device ------------------------------------------------------------------------------


@pytest.fixture
def locked_mosquitto(mosquitto_with):
    """URL of a mosquitto that lets nobody in."""
    with mosquitto_with("allow_anonymous false") as url:
        yield url


@pytest.fixture
def mosquitto_with(tmp_path):
    """Start a mosquitto with lines of one's own instead of letting everyone in: its URL."""

    @contextmanager
    def start(*lines):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        base = mosquitto_config(port).replace("allow_anonymous true\n", "")
        config = tmp_path / "mosquitto.conf"
        config.write_text(base + "\n".join(lines) + "\n")
        with subprocess.Popen([find_mosquitto(), "-c", config], stderr=subprocess.DEVNULL) as it:
            until(lambda: _listens(port), what="mosquitto")
            yield f"mqtt://127.0.0.1:{port}"
            it.terminate()

    return start


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Caller:
    """A device reduced to its socket: publishes payloads, collects responses."""

    def __init__(self, broker, device):
        self.device = device
        self.inbox = queue.Queue()
        self._ready = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"caller-{device}", protocol=paho.MQTTv311
        )
        self._client.max_inflight_messages_set(1000)
        self._client.on_socket_open = lambda _c, _u, s: s.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self._client.on_connect = lambda c, *_: c.subscribe(
            [(wire.response_topic(device), 1), ("gw/v1/dead/+", 1)]
        )
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _c, _u, m: self.inbox.put((m.topic, bytes(m.payload)))
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        assert self._ready.wait(5)

    def close(self):
        close_client(self._client)

    def send(self, payload, *, topic=None, retain=False):
        topic = topic or wire.request_topic(self.device)
        self._client.publish(topic, payload, qos=1, retain=retain)

    def ask(self, X, *, model="tiny", version="1", ttl_ms=5000, id=None):  # noqa: A002
        """Send a request and return it."""
        request = wire.Request(
            id=id or wire.new_id(), model=model, version=version, ttl_ms=ttl_ms, X=X
        )
        self.send(wire.encode_request(request))
        return request

    def message(self, seconds=10.0):
        """Next message of any topic that this caller reads."""
        return self.inbox.get(timeout=seconds)

    def response(self, seconds=10.0):
        topic, payload = self.message(seconds)
        assert topic == wire.response_topic(self.device)
        return wire.decode_response(payload)

    def responses(self, count, seconds=20.0):
        return [self.response(seconds) for _ in range(count)]

    def silent(self, seconds=0.3):
        """Whether nothing comes for a while."""
        try:
            self.message(seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def caller():
    """Make callers on a broker: ``caller(broker)``; each with a device id of its own."""
    open_callers = []

    def make(broker):
        device = f"d{len(open_callers)}-{wire.new_id().hex()[:8]}"
        open_callers.append(Caller(broker, device))
        return open_callers[-1]

    yield make
    for one in open_callers:
        one.close()


# -- the command line ----------------------------------------------------------------------


class Command:
    """A ``gatewise`` command in a process of its own; its lines as they come."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gatewise", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def finish(self, seconds=20.0):
        """Wait for the end: exit status, standard output, standard error."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


@pytest.fixture
def command():
    started = []

    def start(*arguments):
        started.append(Command(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
