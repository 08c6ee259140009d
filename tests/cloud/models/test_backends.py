"""High-cost models that are Python objects outside of the bundle."""

from __future__ import annotations

import http.server
import json
import socketserver
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from gatewise.errors import InputError
from gatewise_cloud import CloudModel, ModelError
from gatewise_cloud.errors import BackendBusy
from gatewise_cloud.models.backend_choice import backend_factory
from gatewise_cloud.models.backends import PythonBackend
from gatewise_edge.errors import SelfTestError
from gatewise_export import Bundle, pack
from gatewise_export.bundle.repacking import repack
from gatewise_export.packing.verification import self_test, verify
from gatewise_training import AdaptGBRT, StagedCascade
from tests.support import tiny_bundle as tiny

#: A module with a model of irises, by the length of their petals, and unusable objects.
BACKEND_MODULE = """
import numpy as np

def probabilities(X):
    distances = np.abs(X[:, 2:3] - np.array([[1.5, 4.3, 5.6]]))
    weights = np.exp(-2.0 * distances)
    return weights / weights.sum(axis=1, keepdims=True)

class Flower:
    classes_ = ["virginica", "setosa", "versicolor"]
    def predict_proba(self, X):
        return probabilities(X)[:, [2, 0, 1]]

def broken(X): raise RuntimeError("no\\nmemory")
def labels(X): return probabilities(X).argmax(axis=1)
def halves(X): return probabilities(X) / 2
not_callable = 3
"""

EXAMPLES = Path(__file__).parents[3] / "examples"
X, SPECIES = load_iris(return_X_y=True)
X = X.astype(np.float32)
SPECIES_NAMES = np.array(["setosa", "versicolor", "virginica"])


@pytest.fixture(scope="module")
def packed_system(tmp_path_factory):
    """A system with a function as its high-cost model, and its bundle."""
    folder = tmp_path_factory.mktemp("opaque")
    (folder / "opaque_flower.py").write_text(BACKEND_MODULE)
    sys.path.insert(0, str(folder))
    system = StagedCascade(
        "python:opaque_flower:probabilities", n_stages=1, families=("linear",), offload_rate=0.5,
        random_state=0,
    ).fit(X, SPECIES_NAMES[SPECIES])  # fmt: skip
    yield system, pack(system, folder / "iris", sample=X[::5], name="iris")
    sys.path.remove(str(folder))


@contextmanager
def http_service():
    """Serve the model over HTTP in the format of TensorFlow Serving."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            import opaque_flower

            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = np.array(json.loads(body)["instances"], np.float32)
            answer = {"predictions": opaque_flower.probabilities(rows).tolist()}
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def make_backend(bundle, url):
    return backend_factory(url)(bundle.manifest)


@pytest.mark.slow
def test_a_bundle_names_its_backend_and_has_no_graph(packed_system, tmp_path):
    system, bundle = packed_system
    cloud = bundle.manifest.cloud
    assert cloud.backend == "python:opaque_flower:probabilities"
    assert set(bundle.manifest.files) == {
        "stage_0.npz",
        "stage_0.onnx",
        "sample.npz",
        "ranges.npz",
        "backend.json",
    }
    assert json.loads(bundle.read("backend.json"))["classes"] == SPECIES_NAMES.tolist()
    assert self_test(bundle).agrees
    report = verify(system, bundle, X)
    assert report.agrees
    assert report.rows == len(X)
    device_bundle = repack(bundle.path, tmp_path / "device", for_device=True)
    assert self_test(Bundle.open(device_bundle.path, for_device=True)).agrees
    with pytest.raises(ModelError, match=r"packed with python:opaque_flower:probabilities.*--back"):
        CloudModel.from_bundle(bundle)


@pytest.mark.slow
def test_fit_pack_and_verify_run_the_high_cost_model_once_per_row(packed_system, tmp_path):
    import opaque_flower

    batch_sizes = []

    def count_and_answer(X):
        batch_sizes.append(len(X))
        return opaque_flower.probabilities(X)

    def count_new_rows():
        """Count the rows since the last call."""
        n_rows = sum(batch_sizes)
        batch_sizes.clear()
        return n_rows

    method = AdaptGBRT(
        count_and_answer, p_full=(0.5,), penalties=(0.1,), n_rounds=2, random_state=0
    )
    system = method.fit(X, SPECIES_NAMES[SPECIES])
    assert count_new_rows() == len(X)
    bundle = pack(system, tmp_path / "iris", sample=X[::5])
    assert count_new_rows() == len(X[::5])
    assert verify(system, bundle, X).agrees
    assert count_new_rows() == len(X)


@pytest.mark.slow
@pytest.mark.parametrize("attribute", ["probabilities", "Flower"])
def test_a_python_object_answers_as_the_high_cost_model(packed_system, attribute):
    system, bundle = packed_system
    model = CloudModel.from_bundle(
        bundle, backend=make_backend(bundle, f"python:opaque_flower:{attribute}")
    )
    cloud_answer = model.answer(X)
    expected_labels, expected_probabilities = system.high_cost_model_.answers(X)
    np.testing.assert_array_equal(cloud_answer.labels, expected_labels)
    # The cloud gives float32.
    np.testing.assert_allclose(cloud_answer.probabilities, expected_probabilities, atol=1e-6)
    assert model.is_local


@pytest.mark.slow
def test_the_example_backend_answers_through_an_http_service(packed_system, monkeypatch):
    system, bundle = packed_system
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with http_service() as url:
        monkeypatch.setenv("MODEL_URL", f"{url}/iris:predict")
        model = CloudModel.from_bundle(
            bundle, backend=make_backend(bundle, "python:http_backend:probabilities")
        )
        labels = model.answer(X).labels
    np.testing.assert_array_equal(labels, system.high_cost_model_.labels(X))
    with pytest.raises(BackendBusy, match="iris 1 does not answer"):
        model.answer(X)


@pytest.mark.parametrize(
    "response", [b"no HTTP\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
def test_the_example_backend_is_busy_if_the_response_is_cut_off(monkeypatch, response):
    """The service reads a request and closes the connection within the response."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)
            self.request.sendall(response)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import http_backend

        monkeypatch.setattr(http_backend, "URL", f"http://127.0.0.1:{server.server_address[1]}/")
        with pytest.raises(
            OSError, match="the service"
        ) as failure:  # for which a worker responds `busy`
            http_backend.probabilities(X[:1])
    assert isinstance(failure.value.__cause__, HTTPException)


def test_another_backend_can_serve_a_bundle_with_a_graph(bundle):
    coefficients = tiny.CLOUD_WEIGHTS

    def linear_probabilities(rows):
        margins = rows @ coefficients
        weights = np.exp(margins - margins.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    classes = Bundle.open(bundle).manifest.classes
    python_backend = PythonBackend(linear_probabilities, classes=classes, model="tiny 1")
    model = CloudModel.from_bundle(bundle, backend=python_backend)
    rows = tiny.random_rows(40)
    np.testing.assert_array_equal(model.answer(rows).labels, tiny.cloud_answers(rows)[0])


@pytest.mark.parametrize(
    ("attribute", "error", "message"),
    [
        ("missing", InputError, "opaque_flower has no .missing."),
        ("not_callable", InputError, "neither a function"),
        ("broken", ModelError, "iris 1 failed: no memory"),
        ("labels", ModelError, r"must give probabilities of shape \(\d+, 3\)"),
        ("halves", ModelError, "add up to 1"),
    ],
)
def test_a_callable_with_an_invalid_output_is_not_served(packed_system, attribute, error, message):
    _, bundle = packed_system
    with pytest.raises(error, match=message) as error_info:
        CloudModel.from_bundle(
            bundle, backend=make_backend(bundle, f"python:opaque_flower:{attribute}")
        )
    assert "\n" not in str(error_info.value)


def test_another_model_fails_the_self_test(packed_system):
    _, bundle = packed_system
    constant_backend = PythonBackend(
        lambda rows: np.tile([1.0, 0.0, 0.0], (len(rows), 1)), classes=SPECIES_NAMES, model="iris 1"
    )
    with pytest.raises(SelfTestError, match="differently than at packing"):
        CloudModel.from_bundle(bundle, backend=constant_backend)


@pytest.mark.parametrize(
    "url", ["ftp://host/model", "model.py", "python:module", "python::x", "http://[::1"]
)
def test_invalid_backends_are_refused(url):
    with pytest.raises(InputError):
        backend_factory(url)
