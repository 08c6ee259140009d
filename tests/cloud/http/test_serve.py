"""``gatewise serve`` as a real process: protocols, offloads and fetched features."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastjsonschema
import numpy as np
import pytest
import urllib3
import yaml

pytest.importorskip("uvicorn")

from gatewise_cloud import MosquittoBroker, Worker
from gatewise_export import Bundle
from gatewise_export.packing.verification import graph_decisions
from tests.support import small_bundle
from tests.support.processes import assert_command_refused
from tests.support.waiting import wait_until

#: OpenAPI document of the Open Inference Protocol, stored with its licence.
PROTOCOL = yaml.safe_load(
    (Path(__file__).parent / "protocol/open_inference_rest.yaml").read_text("utf-8")
)
EASY_ROW = small_bundle.SURE_ROW
HARD_ROW = small_bundle.HARD_ROW


def make_tensor(rows: Any) -> dict[str, Any]:
    X = np.array(rows, float)
    return {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}


INFER_PATH = "/v2/models/small/infer"
EASY_TENSOR = make_tensor([EASY_ROW])

#: A module with a feature store, a function that is not async, and a high-cost model.
STORE_MODULE = """\
import asyncio
async def fetch(names, cells):
    await asyncio.sleep(0)
    if cells.get("f") == 9:
        raise RuntimeError("the store is away")
    if names == ["c"] and cells.get("a") != 0.1:
        raise RuntimeError("the cells of the call before are unknown")
    print(*names, flush=True)
    return {name: {"a": 0.1, "c": 0.1, "e": 2.0}.get(name, 0.0) for name in names}
def plain(names, cells):
    return {}
class Cloud:
    classes = ("no", "yes")
def answer(X):
    # like the small bundle's high-cost model, which has the margin 10 e
    import numpy as np
    probability = 1 / (1 + np.exp(-10.0 * X[:, 2].astype(float)))
    return np.column_stack([1 - probability, probability])
"""


class Service:
    """A client of a served bundle."""

    def __init__(self, url: str, lines: list[str]) -> None:
        self.lines = lines
        self._pool = urllib3.PoolManager()
        self._url = url

    def get(self, path: str) -> tuple[int, Any]:
        response = self._pool.request("GET", self._url + path)
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.json() if is_json else response.data.decode()

    def post(self, path: str, document: Any) -> tuple[int, Any]:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        response = self._pool.request("POST", self._url + path, body=body)
        return response.status, response.json()

    def predict(self, *instances: Any) -> list[dict[str, Any]]:
        status, document = self.post("/predict", {"instances": list(instances)})
        assert status == 200, document
        return list(document["predictions"])


@contextmanager
def serve_by_command(bundle: Bundle, folder: Path, *options: str) -> Iterator[Service]:
    """Serve a bundle by the command on a free port."""
    (folder / "my_store.py").write_text(STORE_MODULE)
    command = [sys.executable, "-m", "gatewise", "serve", str(bundle.path), "--port", "0", *options]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                if url := re.search(r"(http://[^/\s\"]+)", line):
                    break
            else:
                pytest.fail("".join(lines))
            output = process.stdout
            reader = threading.Thread(target=lambda: lines.extend(output), daemon=True)
            reader.start()
            yield Service(url[1], lines)
        finally:
            process.terminate()
            process.wait(20)  # it drains its requests
            reader.join(10)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return small_bundle.write_bundle(tmp_path_factory.mktemp("served") / "bundle")


@pytest.fixture(scope="module")
def service(bundle, tmp_path_factory) -> Iterator[Service]:
    """The served small bundle, which offloads over MQTT to a real worker."""
    folder = tmp_path_factory.mktemp("serve")
    with (
        MosquittoBroker() as broker,
        Worker(bundle.path, broker.url),
        serve_by_command(
            bundle, folder, "--broker", broker.url, "--deadline-ms", "20000"
        ) as service,
    ):
        yield service


def test_the_protocol_gives_the_answers_of_the_bundle(service, bundle):
    rows = np.random.default_rng(0).normal(0, 0.4, (200, 6)).astype(np.float32)
    status, document = service.post(INFER_PATH, {"id": "7", "inputs": [make_tensor(rows)]})
    assert status == 200, document
    assert (document["id"], document["model_name"]) == ("7", "small")
    assert document["model_version"] == "7"
    outputs = {output["name"]: output for output in document["outputs"]}
    assert outputs["probabilities"]["shape"] == [200, 2]
    assert len(outputs["probabilities"]["data"]) == 400
    graph_answers = graph_decisions(bundle, rows)  # what `gatewise verify` compares
    assert outputs["class_index"]["data"] == graph_answers.labels.tolist()
    routes = np.where(graph_answers.exits < 2, "edge", "cloud")
    assert set(routes) == {"edge", "cloud"}
    assert outputs["route"]["data"] == routes.tolist()
    assert outputs["label"]["data"] == np.where(graph_answers.labels, "yes", "no").tolist()
    np.testing.assert_allclose(outputs["cost"]["data"], graph_answers.costs, rtol=1e-6)


def validate_document(schema_name: str, document: Any) -> None:
    """Validate a document with a schema of the protocol."""
    schema = {"$ref": f"#/components/schemas/{schema_name}", "components": PROTOCOL["components"]}
    fastjsonschema.compile(schema)(document)


def test_every_path_of_the_protocol_answers_according_to_its_schema(service):
    for path, operations in PROTOCOL["paths"].items():
        versioned_path = path.replace("${MODEL_NAME}", "small").replace("${MODEL_VERSION}", "7")
        for url in {versioned_path, versioned_path.replace("/versions/7", "")}:
            if "post" in operations:
                status, document = service.post(url, {"inputs": [EASY_TENSOR]})
            else:
                status, document = service.get(url)
            assert status == 200, url
            operation = operations["post" if "post" in operations else "get"]
            content = operation["responses"]["200"].get("content")
            if content is not None:
                reference = content["application/json"]["schema"]["$ref"]
                validate_document(reference.rpartition("/")[2], document)


#: Valid requests by what is special about them.
REQUESTS = {
    "flat": {"inputs": [make_tensor([EASY_ROW, HARD_ROW])]},
    "nested": {"inputs": [EASY_TENSOR | {"data": [EASY_ROW]}]},
    "id and parameters": {"id": "42", "parameters": {"a": 1}, "inputs": [EASY_TENSOR]},
    "outputs": {
        "inputs": [EASY_TENSOR | {"parameters": {"b": True}}],
        "outputs": [{"name": "probabilities", "parameters": {"c": "d"}}],
    },
    "columns": {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [2], "data": [1, 0]} for name in "abcdef"
        ]
    },
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_requests_and_responses_match_the_schemas_of_the_protocol(service, request_name):
    validate_document("inference_request", REQUESTS[request_name])
    status, document = service.post(INFER_PATH, REQUESTS[request_name])
    assert status == 200, document
    validate_document("inference_response", document)


@pytest.mark.parametrize("absent_field", ["inputs", "name", "shape", "datatype", "data"])
def test_schema_and_service_refuse_a_request_without_a_required_field(service, absent_field):
    incomplete_tensor = {key: value for key, value in EASY_TENSOR.items() if key != absent_field}
    request = {} if absent_field == "inputs" else {"inputs": [incomplete_tensor]}
    with pytest.raises(fastjsonschema.JsonSchemaException):
        validate_document("inference_request", request)
    status, document = service.post(INFER_PATH, request)
    assert status == 400
    validate_document("inference_error_response", document)


def test_a_request_may_have_one_tensor_per_column_and_choose_outputs(service):
    inputs = [
        {"name": name, "datatype": "FP64", "shape": [2, 1], "data": [[easy_value], [hard_value]]}
        for name, easy_value, hard_value in zip("abcdef", EASY_ROW, HARD_ROW, strict=True)
    ]
    path = "/v2/models/small/versions/7/infer"
    status, document = service.post(path, {"inputs": inputs, "outputs": [{"name": "route"}]})
    assert status == 200, document
    assert [output["data"] for output in document["outputs"]] == [["edge", "cloud"]]


def test_predictions_state_the_acquired_features_and_the_cost(service):
    easy_prediction, hard_prediction = service.predict(
        EASY_ROW, dict(zip("abcdef", HARD_ROW, strict=True))
    )
    keys = ("label", "route", "acquired")
    assert [easy_prediction[key] for key in keys] == ["yes", "edge", ["a", "b"]]
    assert [hard_prediction[key] for key in keys] == ["no", "cloud", ["a", "b", "c", "e"]]
    assert hard_prediction["cost"] > easy_prediction["cost"] == 1.5  # a 1 and b 0.5


def test_a_row_without_a_required_value_gets_an_error(service):
    (prediction,) = service.predict({"b": 1})
    assert "'a'" in prediction["error"]
    status, document = service.post(INFER_PATH, {"inputs": [make_tensor([[np.inf] * 6])]})
    assert (status, list(document)) == (400, ["error"])


def test_the_service_has_health_metrics_and_documentation_pages(service):
    assert service.get("/v2/health/ready")[0] == service.get("/healthz")[0] == 200
    assert service.get("/v2/models/small/ready") == (200, {"name": "small", "ready": True})
    assert service.get("/v2")[1]["name"] == "gatewise"
    status, model = service.get("/v2/models/small")
    assert (status, model["inputs"][0]["shape"]) == (200, [-1, 6])
    assert service.get("/v2/models/other")[0] == 404
    assert service.get("/v2/models/small/versions/8")[0] == 404
    service.predict(EASY_ROW)
    metrics_text = service.get("/metrics")[1]
    assert float(re.search(r'gatewise_answers_total\{route="edge"\} (\S+)', metrics_text)[1]) >= 1
    document = service.get("/openapi.json")[1]
    assert "/docs" not in document["paths"]
    assert "POST /predict" in service.get("/docs")[1]


def test_the_service_answers_the_examples_of_its_openapi_document(service):
    paths = service.get("/openapi.json")[1]["paths"]
    posts = {path: operations["post"] for path, operations in paths.items() if "post" in operations}
    assert set(posts) == {"/predict", INFER_PATH}
    for path, operation in posts.items():
        example = operation["requestBody"]["content"]["application/json"]["example"]
        status, document = service.post(path, example)
        assert status == 200, document
    for path, operations in paths.items():
        assert "get" not in operations or service.get(path)[0] == 200, path


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/predict", b"{", "truncated"),
        ("/predict", {"rows": []}, "unknown field"),
        ("/predict", {"instances": [[1.0]]}, "6"),
        ("/predict", {"instances": [[1.0], [2.0]]}, "6"),
        (INFER_PATH, {"inputs": []}, "one or more tensors"),
        (INFER_PATH, {"inputs": [make_tensor([[1, 2]])]}, "[n, 6]"),
        (INFER_PATH, {"inputs": [EASY_TENSOR | {"shape": [2, 6]}]}, "not FP32 of shape [2, 6]"),
        (INFER_PATH, {"inputs": [EASY_TENSOR | {"name": "z"}]}, "not one of x"),
        (INFER_PATH, {"inputs": [EASY_TENSOR | {"data": [10**400] * 6}]}, "data are not FP32"),
        (
            INFER_PATH,
            {"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
            "is not that of one column",
        ),
        (INFER_PATH, {"inputs": [EASY_TENSOR], "outputs": [{"name": "z"}]}, "no output 'z'"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(service, path, body, message):
    status, document = service.post(path, body)
    assert status == 400
    assert message in document["error"]


def test_concurrent_requests_all_get_answers(service):
    with ThreadPoolExecutor(8) as pool:
        predictions = pool.map(service.predict, (EASY_ROW, HARD_ROW) * 80)
        routes = Counter(prediction["route"] for (prediction,) in predictions)
    assert routes == {"cloud": 80, "edge": 80}


@pytest.mark.slow
def test_rows_get_fallback_answers_after_a_worker_is_killed(bundle, tmp_path, command):
    with MosquittoBroker() as broker:
        worker = command("cloud", bundle.path, "--broker", broker.url).process
        options = ("--broker", broker.url, "--deadline-ms", "600")
        with serve_by_command(bundle, tmp_path, *options) as service:
            wait_until(lambda: service.predict(HARD_ROW)[0]["route"] == "cloud")
            routes = [service.predict(HARD_ROW)[0]["route"] for _ in range(20)]
            assert routes.count("cloud") >= 18  # a loaded machine may miss the deadline of 0.6 s
            worker.kill()
            worker.wait()
            assert {service.predict(HARD_ROW)[0]["route"] for _ in range(8)} == {"fallback"}


@pytest.mark.slow
def test_features_are_fetched_in_the_order_of_the_stages(bundle, tmp_path):
    options = ("--features", "my_store:fetch", "--backend", "python:my_store:answer")
    with serve_by_command(bundle, tmp_path, *options, "--deadline-ms", "20000") as service:
        (answer,) = service.predict({})
        assert (answer["label"], answer["route"]) == ("yes", "cloud")
        assert answer["acquired"] == ["a", "b", "c", "e"]
        (answer,) = service.predict({"a": 1.0, "b": 0.0})
        assert (answer["route"], answer["acquired"]) == ("edge", ["a", "b"])
        (failure,) = service.predict({"f": 9})
        assert "the store is away" in failure["error"]
        (fallback_answer,) = service.predict({"f": 9, "a": 0.1, "b": 0.1})
        assert fallback_answer["route"] == "fallback"
        status, refusal = service.post("/predict", {"instances": [[1.0]]})
        assert status == 400
        assert refusal["error"] == "a row of 1 values; the bundle has 6 columns"
    fetched_names = [line.strip() for line in service.lines if re.fullmatch("[a-f ]+\n", line)]
    assert fetched_names == ["a b", "c", "e"]


@pytest.mark.slow
def test_without_a_cloud_hard_rows_get_fallback_answers(bundle, tmp_path):
    with serve_by_command(bundle, tmp_path, "--json") as service:
        assert json.loads(service.lines[-1])["model"] == "small 7"  # the line with its address
        (answer,) = service.predict(HARD_ROW)
        assert (answer["route"], answer["reason"]) == ("fallback", "no-link")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--broker", "mqtt://x", "--backend", "http://x/v2/models/m"), "not both"),
        (("--features", "my_store:plain"), "async def"),
        (("--features", "my_store:absent"), "my_store"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(bundle, tmp_path, monkeypatch, options, message):
    (tmp_path / "my_store.py").write_text(STORE_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert message in assert_command_refused("serve", bundle.path, *options, folder=tmp_path)
