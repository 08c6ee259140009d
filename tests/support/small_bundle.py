"""A small handwritten bundle, its high-cost model, and a fake link.

The bundle has six features a to f and two classes. Stage 0 reads a and b and stops if ``|4a| >=
1``. Stage 1 reads c and stops if ``|4c| >= 1``. The cloud reads a, c and e, and answers by the sign
of e. Therefore the values of an instance determine its route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

from gatewise.models.linear import LinearModel
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_export.bundle.arrays import write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.flat_models import write_model
from gatewise_export.bundle.manifest_reader import largest_request
from gatewise_export.bundle.manifest_records import RANGES
from gatewise_export.onnx_writer import write_graph
from tests.support.hand_made_bundle import (
    DOCUMENT,
    complete_document,
    make_stage_entry,
    write_directory,
)

#: Row for which stage 0 stops, and answers yes.
SURE_ROW = [1.0, 0, 0, 0, 0, 0]
#: Row for which no stage stops, so that it is offloaded. Stage 1 tends to yes, the cloud to no.
HARD_ROW = [0.1, 0, 0.1, 0, -1.0, 0]
NAMES = ("a", "b", "c", "d", "e", "f")
FEATURES = [
    {"name": "a", "own": 1.0},
    {"name": "b", "own": 0.5},
    {"name": "c", "own": 2.0, "group": "blood"},
    {"name": "d", "own": 3.0, "group": "blood"},
    {"name": "e", "own": 4.0},
    {"name": "f", "own": 5.0},
]
CLOUD = {"file": "cloud.onnx", "inputs": ["a", "c", "e"], "kind": "margins", "link": "sigmoid"}


def linear_model(weights: np.ndarray) -> LinearModel:
    """Make the model ``x @ weights``."""
    n_inputs, n_outputs = weights.shape
    return LinearModel(
        mean=np.zeros(n_inputs, np.float32),
        scale=np.ones(n_inputs, np.float32),
        weights=weights.astype(np.float32),
        bias=np.zeros(n_outputs, np.float32),
    )


def linear_onnx(weights: np.ndarray) -> bytes:
    """Build the graph of ``x @ weights``."""
    return write_graph(linear_model(weights))


def run_rows(graph: bytes, X: np.ndarray) -> np.ndarray:
    """Run a graph on each row separately."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": X[i : i + 1]})[0] for i in range(len(X))])


def binary_probabilities(margins: np.ndarray) -> np.ndarray:
    """Compute the probabilities of both classes by the sigmoid, in float64."""
    yes_probabilities = 1 / (1 + np.exp(-margins.astype(np.float64)))
    return np.column_stack([1 - yes_probabilities, yes_probabilities])


def sample_rows(n: int = 32) -> np.ndarray:
    """Draw rows of the small bundle."""
    return np.random.default_rng(0).normal(0, 0.4, (n, len(NAMES))).astype(np.float32)


def write_bundle(
    path: Path,
    *,
    has_cloud: bool = True,
    ranges: dict[str, np.ndarray] | None = None,
    **changes: object,
) -> Bundle:
    """Write the small bundle, optionally with ranges; `changes` are fields of the manifest."""
    graphs = {
        "stage_0.onnx": (("a", "b"), np.array([[4.0], [0.0]])),
        "stage_1.onnx": (("c",), np.array([[4.0]])),
    }
    if has_cloud:
        graphs["cloud.onnx"] = (("a", "c", "e"), np.array([[0.0], [0.0], [10.0]]))
    X = sample_rows()
    files = {}
    arrays = {"X": X}
    for name, (inputs, weights) in graphs.items():
        files[name] = linear_onnx(weights)
        if name != "cloud.onnx":
            files[name.replace("onnx", "npz")] = write_model(linear_model(weights))
        outputs = run_rows(files[name], X[:, [NAMES.index(name) for name in inputs]])
        arrays[name.removesuffix(".onnx")] = outputs
    if has_cloud:
        margins = arrays.pop("cloud")[:, 0]
        arrays["cloud_label"] = (margins > 0).astype(np.int64)
        arrays["cloud_probabilities"] = binary_probabilities(margins).astype(np.float32)
    files["sample.npz"] = write_arrays(arrays)
    if ranges is not None:
        files[RANGES] = write_arrays(ranges)
    # without a cloud, the last stage must always stop
    last_threshold = 1.0 if has_cloud else float(np.finfo(np.float32).min)
    shared_fields = {"expected_cost": 5.0, "accuracy": 0.9, "offload_rate": 0.2}
    document = DOCUMENT | {
        "created": "2026-01-01T00:00:00Z",
        "name": "small",
        "version": "7",
        "classes": ["no", "yes"],
        "features": FEATURES,
        "groups": [{"name": "blood", "shared": 10.0}],
        "prices": {"request": 0.25, "byte": 0.001, "evaluation": 0.5},
        "stages": [make_stage_entry(0, ["a", "b"]), make_stage_entry(1, ["c"])],
        "cloud": CLOUD if has_cloud else None,
        "operating_points": [
            shared_fields | {"thresholds": [threshold, last_threshold]} for threshold in (1.0, None)
        ],
    }
    bundle = Bundle.open(write_directory(path, complete_document(document, files), files))
    manifest = msgspec.structs.replace(bundle.manifest, **changes)
    manifest = msgspec.structs.replace(manifest, largest_request=largest_request(manifest))
    (path / "manifest.json").write_bytes(manifest.to_json())
    return Bundle.open(path)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Fixture with the small bundle; imported by conftests."""
    return write_bundle(tmp_path_factory.mktemp("small") / "bundle")


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Bundle]:
    """Fixture that writes a small bundle with changed fields; imported by conftests."""
    return lambda name="bundle", **changes: write_bundle(tmp_path / name, **changes)


def answer_sample(device: Device) -> list[Answer]:
    """Answer the rows of a bundle's sample, and compare stages, classes and costs with it."""
    sample = device.bundle.sample()
    answers = [device.answer(row) for row in sample["X"]]
    assert [answer.stage for answer in answers] == sample["exit"].tolist()
    assert [answer.class_index for answer in answers] == sample["label"].tolist()
    assert [answer.cost for answer in answers] == sample["cost"].tolist()
    return answers


def cloud_answers(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute labels and probabilities of the small bundle's high-cost model."""
    return (X[:, 2] > 0).astype(np.int64), binary_probabilities(10.0 * X[:, 2].astype(np.float64))


class FakeLink:
    """A link that calls a function of the test for each payload, on the sender's thread.

    The function is `handle_payload(payload, receive)`; by default it responds like the cloud.
    `deliver` passes a payload to the device.
    """

    def __init__(
        self, handle_payload: Callable[[bytes, Callable[[bytes], None]], object] | None = None
    ):
        self.is_ready = True
        self.accepts = True
        self.sent_payloads: list[bytes] = []
        self.n_closes = 0
        self.handle_payload = handle_payload or respond
        self.deliver: Callable[[bytes], None] = lambda payload: None

    def open(self, receive: Callable[[bytes], None]) -> None:
        self.deliver = receive

    def send(self, payload: bytes) -> bool:
        self.sent_payloads.append(payload)
        if self.accepts:
            self.handle_payload(payload, self.deliver)
        return self.accepts

    def close(self) -> None:
        self.n_closes += 1
        self.is_ready = False


def respond(payload: bytes, receive: Callable[[bytes], None]) -> None:
    """Respond to a request with the high-cost model's answer."""
    receive(wire.encode_response(answer_to(wire.decode_request(payload))))


def refuse(
    payload: bytes, receive: Callable[[bytes], None], code: str = wire.BUSY, wait_ms: int = 0
) -> None:
    """Respond to a request with a refusal."""
    refusal = wire.Response.refusal(wire.decode_request(payload), code)
    receive(wire.encode_response(replace(refusal, wait_ms=wait_ms)))


def answer_to(request: wire.Request, **changes: object) -> wire.Response:
    """Make the response with the high-cost model's answer, with some fields changed."""
    labels, probabilities = cloud_answers(request.X)
    fields = {
        "id": request.id,
        "model": request.model,
        "version": request.version,
        "labels": labels,
        "probabilities": probabilities,
    }
    return wire.Response(**(fields | changes))
