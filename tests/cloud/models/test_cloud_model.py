"""Answers of the high-cost model, and the rows and bundles that it refuses."""

import resource

import msgspec
import numpy as np
import pytest

from gatewise.graph_loading import LoadLimits
from gatewise.models.instances import InstanceSpec
from gatewise_cloud import CloudModel, ModelError, RefusedRows
from gatewise_cloud.models.backends import Backend
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import SignatureError
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen
from tests.support import tiny_bundle as tiny


@pytest.mark.parametrize("kind", ["margins", "classifier"])
@pytest.mark.parametrize("n_rows", [0, 1, 5])
def test_answers_have_the_expected_labels_and_probabilities(tmp_path, kind, n_rows):
    model = CloudModel.from_bundle(tiny.write_bundle(tmp_path / "b", kind=kind))
    X = tiny.random_rows(n_rows)
    labels, probabilities = model.answer(X)
    expected_labels, expected_probabilities = tiny.cloud_answers(X)
    assert labels.dtype == np.int64
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(labels, expected_labels)
    # The model computes in float32, the reference in float64.
    np.testing.assert_allclose(probabilities, expected_probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        (np.zeros((1, 3), np.float32), "shape"),
        (np.zeros(4, np.float32), "shape"),
        (np.full((2, 4), np.inf, np.float32), "infinite"),
        (np.full((2, 4), np.nan, np.float32), "missing"),
    ],
)
def test_rows_of_a_wrong_shape_or_value_are_refused(bundle, X, reason):
    with pytest.raises(RefusedRows) as error_info:
        CloudModel.from_bundle(bundle).answer(X)
    assert error_info.value.reason == reason


def test_values_of_another_type_are_refused(bundle):
    model = CloudModel.from_bundle(bundle)
    spec = InstanceSpec((2, 2), "uint8")
    model.manifest = msgspec.structs.replace(model.manifest, instance=spec)
    model.check_instances(np.array([[0.0, 255.0, 7.0, 1.0]], np.float32))  # all of them are uint8
    for X in (np.full((1, 4), 256, np.int16), np.full((1, 4), 0.5, np.float32)):
        with pytest.raises(RefusedRows, match="takes uint8, but a value is"):
            model.check_instances(X)


def test_missing_values_are_allowed_by_the_manifest(tmp_path):
    model = CloudModel.from_bundle(tiny.write_bundle(tmp_path / "b", missing="allowed"))
    X = tiny.random_rows(2)
    X[0, 0] = np.nan
    model.check_instances(X)
    with pytest.raises(RefusedRows, match="infinite"):
        model.check_instances(np.full((1, 4), -np.inf, np.float32))


def test_a_graph_that_needs_gigabytes_is_not_served(tmp_path):
    limit_before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ModelError, match=r"(?i)failed|bad_alloc"):
        CloudModel.from_bundle(tiny.write_bundle(tmp_path / "b", graph=tiny.growing_graph()))
    assert resource.getrlimit(resource.RLIMIT_DATA) == limit_before


@pytest.mark.slow
def test_a_graph_that_loads_slowly_is_not_served(tmp_path):
    """The graph is small, but its constants are nested products that take seconds to compute."""
    graph = tiny.costly_graph()
    assert len(graph) < 100_000  # bytes
    path = tiny.write_bundle(tmp_path / "b", graph=graph, loading={"bytes": 1e9, "seconds": 0.3})
    with pytest.raises(ModelError, match=r"does not load: loading it took more than 0\.3 s"):
        CloudModel.from_bundle(path)


def test_the_operators_load_limits_bound_the_limits_of_a_bundle(tmp_path):
    path = tiny.write_bundle(tmp_path / "b", loading={"bytes": 1e9, "seconds": 90})
    with pytest.raises(
        ModelError, match="takes up to 90 seconds, but at most 60 are allowed: raise load_"
    ):
        CloudModel.from_bundle(path)
    limits = LoadLimits(bytes=2e9, seconds=90)
    answer = CloudModel.from_bundle(path, load_limits=limits).answer(tiny.random_rows(3))
    assert len(answer.labels) == 3


class ClosableBackend(Backend):
    """Backend with correct answers for the tiny bundle, which notes whether it was closed."""

    kind = "classifier"
    is_closed = False

    def run(self, X):
        return list(tiny.cloud_answers(X))

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(
    ("bundle_options", "error_class", "message"),
    [
        ({"has_cloud": False}, ModelError, "has no high-cost model"),
        ({"has_wrong_sample": True}, SelfTestError, "8 of 8 sample rows"),
    ],
)
def test_a_bundle_that_cannot_be_served_is_refused_and_its_backend_closed(
    tmp_path, bundle_options, error_class, message
):
    path = tiny.write_bundle(tmp_path / "b", **bundle_options)
    backend = ClosableBackend()
    with pytest.raises(error_class, match=message) as error_info:
        CloudModel.from_bundle(path, backend=backend)
    assert backend.is_closed
    if error_class is SelfTestError:
        assert error_info.value.differences == {"cloud_label": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "graph", "message"),
    [
        ("classifier", tiny.linear_graph(tiny.CLOUD_WEIGHTS), "must have 2 output"),
        ("margins", tiny.linear_graph(tiny.CLOUD_WEIGHTS[:3]), "does not load"),
        ("margins", tiny.linear_graph(tiny.CLOUD_WEIGHTS[:, :2]), "probabilities for 8 instances"),
        ("margins", b"not a graph", "does not load"),
    ],
    ids=["no labels", "other inputs", "other outputs", "no graph"],
)
def test_an_unsuitable_graph_is_not_served(tmp_path, kind, graph, message):
    path = tiny.write_bundle(tmp_path / "b", kind=kind, graph=graph)
    with pytest.raises(ModelError, match=message) as error_info:
        CloudModel.from_bundle(path)
    assert error_info.value.model == "tiny 1"
    assert "\n" not in str(error_info.value)


def test_the_signature_is_checked_for_paths_and_opened_bundles(tmp_path):
    path = tiny.write_bundle(tmp_path / "b")
    private_key, public_key = keygen(tmp_path / "key")
    signed_path = repack(path, tmp_path / "signed", sign=private_key).path

    def load_model(bundle):
        return ServedModels(public_key=public_key).load(bundle)

    for bundle in (path, Bundle.open(path)):
        with pytest.raises(SignatureError, match="is not signed"):
            load_model(bundle)
    for bundle in (
        signed_path,
        Bundle.open(signed_path),
        Bundle.open(signed_path, public_key=public_key),
    ):
        assert load_model(bundle) == ("tiny", "1")
