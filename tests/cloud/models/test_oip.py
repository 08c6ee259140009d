"""High-cost model on a server of the Open Inference Protocol."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from gatewise.errors import InputError
from gatewise_cloud import CloudModel, ModelError, Worker
from gatewise_cloud.errors import BackendBusy
from gatewise_cloud.models.oip import OipBackend, _read_outputs, oip_backend_factory
from gatewise_export.bundle.bundle import Bundle
from tests.support import tiny_bundle as tiny
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


class OipServer:
    """Server of version 2 of the protocol, which runs a graph in onnxruntime."""

    def __init__(self, graph, *, accepts_binary=True, has_label_columns=False):
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.accepts_binary = accepts_binary
        self.has_label_columns = has_label_columns  # labels as [n, 1], as MLServer gives them
        self.status = 200
        self.spoil_outputs = None  # a function that changes the outputs of a response
        self.n_connections = 0
        self.n_binary_requests = 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # With Nagle's algorithm the body waits until the client acknowledges the headers.
            disable_nagle_algorithm = True

            def setup(self):
                server.n_connections += 1
                super().setup()

            def do_GET(self):
                is_known_model = self.path == "/v2/models/tiny%201"
                input_name = server.session.get_inputs()[0].name
                inputs = [{"name": input_name, "datatype": "FP32", "shape": [-1, 4]}]
                self.respond(200 if is_known_model else 404, {"name": "tiny 1", "inputs": inputs})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                json_bytes = int(self.headers.get("Inference-Header-Content-Length", len(body)))
                request = json.loads(body[:json_bytes])
                (tensor,) = request["inputs"]
                if "binary_data_size" in tensor.get("parameters", {}):
                    if not server.accepts_binary:
                        self.respond(400, {"error": "not a JSON document"})
                        return
                    server.n_binary_requests += 1
                    numbers = np.frombuffer(body[json_bytes:], "<f4")
                else:
                    numbers = np.array(tensor["data"], "f4")
                X = numbers.reshape(tensor["shape"])
                outputs = server.session.run(None, {tensor["name"]: X})
                if server.status != 200:
                    self.respond(server.status, {"error": "too much at once"})
                    return
                descriptions = []
                binary_outputs = b""
                for output, array in zip(server.session.get_outputs(), outputs, strict=True):
                    datatype = {"int64": "INT64", "float32": "FP32"}[array.dtype.name]
                    if server.has_label_columns and array.ndim == 1:
                        array = array[:, np.newaxis]
                    description = {
                        "name": output.name,
                        "datatype": datatype,
                        "shape": list(array.shape),
                    }
                    if request.get("parameters", {}).get("binary_data_output"):
                        description["parameters"] = {"binary_data_size": array.nbytes}
                        binary_outputs += array.tobytes()
                    else:
                        description["data"] = array.reshape(-1).tolist()
                    descriptions.append(description)
                if server.spoil_outputs:
                    server.spoil_outputs(descriptions)
                self.respond(200, {"model_name": "tiny 1", "outputs": descriptions}, binary_outputs)

            def respond(self, status, document, binary_outputs=b""):
                json_body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(json_body) + len(binary_outputs)))
                if binary_outputs:
                    self.send_header("Inference-Header-Content-Length", str(len(json_body)))
                self.end_headers()
                self.wfile.write(json_body + binary_outputs)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v2/models/{{name}}%20{{version}}"
        # The server looks every 20 ms whether it must stop.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture(autouse=True)
def _close_backends(monkeypatch):
    """Close the backends that a test made without a worker."""
    backends = []
    original_init = OipBackend.__init__

    def init_and_record(self, *arguments, **settings):
        backends.append(self)
        original_init(self, *arguments, **settings)

    monkeypatch.setattr(OipBackend, "__init__", init_and_record)
    yield
    for backend in backends:
        if hasattr(backend, "_pool"):  # its constructor did not fail early
            backend.close()


@pytest.fixture
def start_server():
    servers = []

    def start_new_server(path, **settings):
        servers.append(OipServer((path / "cloud.onnx").read_bytes(), **settings))
        return servers[-1]

    yield start_new_server
    for server in servers:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "accepts_binary", "has_label_columns"),
    [
        *(("margins", False, False), ("margins", True, False)),
        *(("classifier", False, True), ("classifier", True, False), ("classifier", True, True)),
    ],
)
def test_a_remote_model_answers_as_the_local_model(
    tmp_path, start_server, kind, accepts_binary, has_label_columns
):
    path = tiny.write_bundle(tmp_path / "b", kind=kind)
    server = start_server(path, accepts_binary=accepts_binary, has_label_columns=has_label_columns)
    make_backend = oip_backend_factory(server.url)
    remote_model = CloudModel.from_bundle(path, backend=make_backend(Bundle.open(path).manifest))
    local_model = CloudModel.from_bundle(path)
    for n_rows in (1, 7, 100):
        X = tiny.random_rows(n_rows, seed=n_rows)
        for array, local_array in zip(remote_model.answer(X), local_model.answer(X), strict=True):
            np.testing.assert_array_equal(array, local_array)
    assert server.n_connections == 1
    # one request tries the form, one has the sample rows, and one each has 1, 7 and 100 rows
    assert server.n_binary_requests == (5 if accepts_binary else 0)
    assert remote_model.trouble is None


def test_a_worker_answers_with_a_remote_model_and_reports_its_errors(
    bundle, start_server, mosquitto, connect_caller
):
    server = start_server(bundle)
    with Worker(
        bundle, mosquitto.url, backend=oip_backend_factory(server.url), parallel=3
    ) as worker:
        client = connect_caller(mosquitto)
        X = tiny.random_rows(30)
        row_of_request = {client.ask(X[i : i + 1], ttl_ms=20_000).id: i for i in range(30)}
        labels, _ = tiny.cloud_answers(X)
        for answer in client.responses(30):
            assert answer.labels[0] == labels[row_of_request[answer.id]]
        server.status = 503
        client.ask(tiny.random_rows(1))
        answer = client.response()
        assert (answer.error, answer.is_retryable) == ("busy", True)
        assert "503" in worker.trouble
        server.status = 500
        client.ask(tiny.random_rows(1))
        assert client.response().error == "failed"
        server.status = 200
        client.ask(tiny.random_rows(1))
        assert client.response().error is None
        assert worker.trouble is None


@pytest.mark.slow
def test_the_command_line_takes_a_backend(bundle, start_server, mosquitto, connect_caller, command):
    server = start_server(bundle)
    worker = command(
        "cloud", bundle, "--broker", mosquitto.url, "--backend", server.url, "--parallel", 2,
    )  # fmt: skip
    assert worker.read_line().startswith("ready: model tiny 1 on")
    client = connect_caller(mosquitto)
    client.ask(tiny.random_rows(3))
    assert client.response().labels.tolist() == tiny.cloud_answers(tiny.random_rows(3))[0].tolist()


def change_output(**fields):
    """Make a function that changes fields of the first output of a response."""
    return lambda outputs: outputs[0].update(fields)


BACKEND_OPTIONS = {"n_inputs": 4, "kind": "margins", "model": "tiny 1"}


def tiny_url(server):
    """URL of the tiny bundle's model on a server."""
    return server.url.replace("{name}", "tiny").replace("{version}", "1")


@pytest.mark.parametrize(
    ("spoil_outputs", "message"),
    [
        *[
            (change_output(**fields), "does not follow the protocol")
            for fields in (
                *({"shape": [1, 2]}, {"shape": [-1]}, {"datatype": "STRING"}, {"data": "nothing"}),
                {"parameters": {"binary_data_size": 12}},
                *({"parameters": [1]}, {"datatype": "UINT8", "data": [300, 0, 0]}),
            )
        ],
        (lambda outputs: outputs[0].pop("data"), "does not follow the protocol"),
        (change_output(data=[0.0] * 6, shape=[2, 3]), "for 1 instances"),
        (change_output(datatype="INT64"), "not one matrix of margins"),
        (lambda outputs: outputs.clear(), "not one matrix of margins"),
    ],
)
def test_a_malformed_response_of_the_server_is_an_error(
    bundle, start_server, spoil_outputs, message
):
    server = start_server(bundle, accepts_binary=False)
    backend = OipBackend(tiny_url(server), **BACKEND_OPTIONS)
    server.spoil_outputs = spoil_outputs
    with pytest.raises(ModelError, match=message) as error_info:
        backend.run(tiny.random_rows(1))
    assert not isinstance(error_info.value, BackendBusy)
    server.spoil_outputs = None
    assert len(backend.run(tiny.random_rows(1))[0]) == 1


# The shape has six numbers.
@pytest.mark.parametrize("n_numbers", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("is_binary", [False, True])
def test_a_tensor_with_more_or_fewer_numbers_than_its_shape_is_refused(n_numbers, is_binary):
    numbers = np.arange(n_numbers, dtype="<f4")
    tensor = {"name": "margins", "datatype": "FP32", "shape": [2, 3]}
    if is_binary:
        tensor["parameters"] = {"binary_data_size": numbers.nbytes}
    else:
        tensor["data"] = numbers.tolist()
    json_body = json.dumps({"outputs": [tensor]}).encode()
    body = json_body + numbers.tobytes() if is_binary else json_body
    if n_numbers == 6:
        (array,) = _read_outputs(body, str(len(json_body)))
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    else:
        with pytest.raises(ValueError, match=r"for shape \[2, 3\]"):
            _read_outputs(body, str(len(json_body)))


def test_missing_values_need_the_binary_form(bundle, start_server):
    X = tiny.random_rows(1)
    X[0, 0] = np.nan
    server = start_server(bundle)
    assert np.isnan(OipBackend(tiny_url(server), **BACKEND_OPTIONS).run(X)[0]).all()
    server.accepts_binary = False
    with pytest.raises(ModelError, match="JSON cannot express missing values"):
        OipBackend(tiny_url(server), **BACKEND_OPTIONS).run(X)


def test_absent_and_slow_servers_and_unknown_models_are_errors(bundle, start_server):
    server = start_server(bundle)
    url = tiny_url(server)
    with pytest.raises(ModelError, match="404"):
        OipBackend(url.replace("tiny", "other"), **BACKEND_OPTIONS)
    with pytest.raises(ModelError, match=r"FP32 \[-1, 4\], not FP32 \[-1, 5\]"):
        OipBackend(url, **BACKEND_OPTIONS | {"n_inputs": 5})
    connected_backend = OipBackend(url, **BACKEND_OPTIONS)
    server.close()
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        silent_url = f"http://127.0.0.1:{silent_server.getsockname()[1]}/v2/models/m"
        with pytest.raises(BackendBusy, match="cannot answer now"):
            OipBackend(silent_url, **BACKEND_OPTIONS, timeout=0.1)
    with pytest.raises(BackendBusy, match="cannot answer now"):
        OipBackend(silent_url, **BACKEND_OPTIONS)
    for invalid_url in (
        *("mqtt://h/v2/models/m", "http://h/m", "http://h:x/v2/models/m", "http:///v2"),
    ):
        with pytest.raises(InputError, match="backend"):
            OipBackend(invalid_url, **BACKEND_OPTIONS)
    assert connected_backend.trouble is None


BODY = b'{"inputs": [{"name": "xyz"}]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize(
    ("slow_parts", "last_part"),
    [
        ([HEAD, *([bytes((byte,)) for byte in BODY])], b""),
        ([bytes((byte,)) for byte in HEAD], BODY),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 30, HEAD + BODY),
    ],
    ids=["body", "head", "continue"],
)
def test_a_slow_response_is_an_error_after_the_timeout(slow_parts, last_part):
    def send_slowly():
        connection, _ = server.accept()
        with connection, suppress(OSError):  # the backend has closed the connection
            connection.recv(65536)
            for part in slow_parts:
                connection.sendall(part)
                time.sleep(0.02)  # shorter than the timeout, but there are 28 or more parts
            connection.sendall(last_part)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=send_slowly)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v2/models/m"
        with pytest.raises(BackendBusy, match="cannot answer now"):
            OipBackend(url, n_inputs=4, kind="margins", model="m 1", timeout=0.2)
        thread.join()


# -- MLServer ------------------------------------------------------------------------------


@pytest.fixture
def mlserver():
    """Path of MLServer, which has an environment of its own."""
    path = os.environ.get("GATEWISE_MLSERVER")
    if not path:
        pytest.skip("`make test-oip` installs MLServer and runs this test")
    return path


@pytest.mark.slow
def test_mlserver_serves_the_bundles_model(tmp_path, mlserver, mosquitto, connect_caller):
    path = tiny.write_bundle(tmp_path / "b", kind="classifier")
    home = tmp_path / "oip"
    shutil.copytree(ROOT / "deploy" / "oip", home)
    shutil.copy(path / "cloud.onnx", home)
    settings = json.loads((home / "settings.json").read_text())
    for name in ("http_port", "grpc_port", "metrics_port"):
        settings[name] = free_port()
    (home / "settings.json").write_text(json.dumps(settings))
    manifest = Bundle.open(path).manifest
    make_backend = oip_backend_factory(f"http://127.0.0.1:{settings['http_port']}/v2/models/cloud")

    def is_served():
        assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
        with suppress(ModelError):
            make_backend(manifest).close()
            return True
        return False

    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([mlserver, "start", home], stdout=log, stderr=log)
    try:
        wait_until(is_served, "MLServer, which starts several processes", 120)
        remote_backend = make_backend(manifest)
        X = tiny.random_rows(50)
        local_answer = CloudModel.from_bundle(path).answer(X)
        # MLServer does not support the binary extension over HTTP, so that this one is in JSON.
        answer = CloudModel.from_bundle(path, backend=remote_backend).answer(X)
        np.testing.assert_array_equal(answer.labels, local_answer.labels)
        np.testing.assert_array_equal(answer.probabilities, local_answer.probabilities)
        with Worker(path, mosquitto.url, backend=lambda _: remote_backend, parallel=2):
            client = connect_caller(mosquitto)
            client.ask(X)
            assert client.response().labels.tolist() == local_answer.labels.tolist()
    finally:
        server.terminate()
        server.wait(30)
