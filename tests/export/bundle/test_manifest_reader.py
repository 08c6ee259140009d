"""Manifests are read strictly and round-trip; the schema in the docs is generated."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import BooleanColumn, CategoryColumn, NumberColumn, OrdinalColumn
from gatewise.costs import CloudPrices, FeatureCosts, request_bytes
from gatewise.decision import ALWAYS_STOP
from gatewise.documents import encode_json, json_schema
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.bundle.manifest_records import ManifestDocument
from tests.support.hand_made_bundle import DOCUMENT, Document

Edit = Callable[[Document], Any]
SCHEMA_FILE = Path(__file__).parents[3] / "docs/manifest.schema.json"


def read_document(document: Document) -> Manifest:
    return read_manifest(json.dumps(document).encode())


def test_a_manifest_round_trips_to_the_same_bytes(document: Document) -> None:
    manifest = read_document(document)
    assert (manifest.name, manifest.classes) == ("heart", ("absent", "present"))
    assert manifest.feature_names == ("age", "chol", "fbs", "thal")
    assert manifest.stages[1].inputs == ("fbs", "age")
    assert manifest.stage_inputs(1).tolist() == [2, 0]
    assert manifest.cloud_inputs().tolist() == [3, 1, 0]
    assert manifest.active_point.thresholds == (0.5, -1.25)
    assert manifest.operating_points[1].guarantee == {"delta": 0.05, "about": "offload_rate"}
    assert manifest.missing.cloud == "refused"
    assert manifest.cloud_prices() == CloudPrices(1.0, 0.01, 0.5)
    assert manifest.feature_costs() == FeatureCosts(
        [1.0, 5.17, 3.1, 100.0],
        group=[None, "blood", "blood", None],
        shared={"blood": 2.1},
        names=["age", "chol", "fbs", "thal"],
    )
    content = manifest.to_json()
    assert read_manifest(content).to_json() == content
    assert json.loads(content) == document


def test_figures_by_class_round_trip(document: Document) -> None:
    manifest = read_document(with_optional_figures(document))
    assert manifest.active_point.precision == (0.9, None)
    assert manifest.with_bounds((None, 0.25), (0.5, None)) == manifest
    assert manifest.with_bounds((None, 0.2), (None, None)).min_precision is None


def test_exit_costs_count_the_union_of_acquired_features(document: Document) -> None:
    costs = read_document(document).exit_costs()
    # Prices of the hand-made bundle: a request, an evaluation, and the bytes of three inputs.
    request_cost = 1.0 + 0.5 + 0.01 * request_bytes(3)
    # age, chol, fbs, the group of the last two, and thal
    all_features = 1.0 + 5.17 + 3.1 + 2.1 + 100.0
    assert costs.tolist() == pytest.approx([1.0, 1.0 + 3.1 + 2.1, all_features + request_cost])
    document["stages"][1]["kind"] = "lazy"
    del document["stages"][1]["graph"]
    document["stages"][1]["bytes"] = document["files"]["stage_1.npz"]["size"]
    del document["files"]["stage_1.onnx"]
    manifest = read_document(document)
    upper_bounds = manifest.exit_costs()
    acquired_columns = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], bool)  # of fbs and age
    acquired = [manifest.acquired_mask(0), manifest.acquired_mask(1, acquired_columns)]
    assert acquired[1].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0]]
    costs = manifest.exit_costs(acquired)
    assert costs[0].tolist() == [1.0] * 4
    assert costs[1].tolist() == pytest.approx([1.0, 1.0, 6.2, 6.2])
    # The cloud reads no fbs.
    expected_costs = [upper_bounds[2] - 3.1] * 2 + [upper_bounds[2]] * 2
    assert costs[2].tolist() == pytest.approx(expected_costs)


def test_stages_follow_the_chain_of_the_active_point(document: Document) -> None:
    document["chains"] = [[1], [0, 1]]
    document["operating_points"][0]["chain"] = 1
    document["operating_points"][1]["thresholds"] = [None]
    manifest = read_document(document)
    assert [stage.arrays for stage in manifest.stages] == ["stage_0.npz", "stage_1.npz"]
    switched_manifest = manifest.with_active(1)
    assert [stage.arrays for stage in switched_manifest.stages] == ["stage_1.npz"]
    assert switched_manifest.stage_inputs(0).tolist() == [2, 0]
    assert read_manifest(switched_manifest.to_json()) == switched_manifest
    with pytest.raises(ManifestError, match="active: must be 0 to 1, not 2"):
        switched_manifest.with_active(2)


def test_without_a_cloud_the_last_stage_must_always_stop(document: Document) -> None:
    document["cloud"] = None
    document["largest_request"] = 0
    del document["files"]["cloud.onnx"]
    with pytest.raises(ManifestError, match=r"operating_points\[0\].thresholds: must end with"):
        read_document(document)
    for point in document["operating_points"]:
        point["thresholds"] = [None, ALWAYS_STOP]
    manifest = read_document(document)
    assert manifest.cloud is None
    assert len(manifest.cloud_inputs()) == 0
    assert manifest.exit_costs().tolist() == pytest.approx([1.0, 6.2])


def set_entry(*path_and_value: Any) -> Edit:
    """Make a function that sets an entry of a document, or deletes it for the value ``...``."""
    *path, key, value = path_and_value

    def edit_document(document: Document) -> None:
        for parent_key in path:
            document = document[parent_key]
        document[key] = value
        if value is ...:
            del document[key]

    return edit_document


#: Changes of a document, the field that the error names, and a part of its message.
INVALID_FIELDS: list[tuple[Edit, str, str]] = [
    (set_entry("schema_version", 1), "schema_version", "must be 2"),
    (set_entry("name", ...), "the document", "lacks 'name'"),
    (set_entry("extra", 1), "the document", "unknown key 'extra'"),
    (set_entry("name", "a/b"), "name", "MQTT"),
    (set_entry("name", "x" * 65), "name", "at most 64"),
    (set_entry("name", "ä" * 33), "name", "1 to 64 bytes"),
    (set_entry("version", "1\t2"), "version", "control characters"),
    (set_entry("version", 3), "version", "must be text"),
    (set_entry("created", "2026-01-31T12:00:00+01:00"), "created", "UTC"),
    (set_entry("min_runtime_version", "soon"), "min_runtime_version", "1.2.3"),
    (set_entry("task", "cluster"), "task", "'classify'"),
    (set_entry("classes", ["absent", "absent"]), "classes", "twice"),
    (set_entry("classes", ["absent", 1]), "classes[1]", "different type"),
    (set_entry("classes", [None, "x"]), "classes[0]", "must be"),
    (set_entry("link", "logit"), "link", "'sigmoid'"),
    (set_entry("link", "softmax"), "link", "last stage"),
    (set_entry("features", 0, "own", -1), "features[0].own", "not -1"),
    (set_entry("features", 0, "own", 10**400), "features[0].own", "range"),
    (set_entry("features", 0, "name", "chol"), "features", "'chol' is listed twice"),
    (set_entry("features", 0, "name", "a\nb"), "features[0].name", "cannot be printed"),
    (set_entry("features", 0, "group", "urine"), "features[0].group", "not a listed group"),
    (
        set_entry("groups", [{"name": name, "shared": 1} for name in ("blood", "x")]),
        "groups",
        "'x'",
    ),
    (set_entry("groups", 0, "requires", ["blood"]), "groups", "require each other"),
    (
        set_entry("groups", 0, "requires", ["urine"]),
        "groups",
        "'urine' is required, but not listed",
    ),
    (set_entry("prices", "byte", None), "prices.byte", "number"),
    (set_entry("prices", "ether", 1.0), "prices", "unknown key 'ether'"),
    (set_entry("missing", "cloud", "maybe"), "missing.cloud", "'allowed' or 'refused'"),
    (set_entry("stages", 0, "inputs", ["shoe size"]), "stages[0].inputs[0]", "'shoe size'"),
    (set_entry("stages", 0, "inputs", ["age", "age"]), "stages[0].inputs", "twice"),
    (set_entry("stages", 0, "arrays", "../x.npz"), "stages[0].arrays", "plain file name"),
    (set_entry("stages", 0, "arrays", "stage_9.npz"), "files", "stage_0.npz"),
    (set_entry("stages", 0, "arrays", "stage_1.npz"), "files", "used by two models"),
    (
        set_entry("stages", 0, "arrays", ...),
        "stages[0].arrays",
        "must name a file for kind 'linear'",
    ),
    (set_entry("stages", 0, "kind", "lazy"), "stages[0].graph", "must be null for kind 'lazy'"),
    (set_entry("stages", 0, "kind", "graph"), "stages[0].arrays", "must be null"),
    (set_entry("stages", 0, "kind", "pickle"), "stages[0].kind", "'graph'"),
    (set_entry("stages", 0, "bytes", 3), "stages[0].bytes", "its files have 23"),
    (set_entry("stages", 0, "outputs", 2), "stages[0].outputs", "2 margins"),
    (set_entry("stages", 0, "link", "softmax"), "stages[0].outputs", "1 margins"),
    (set_entry("cloud", "file", "stage_0.onnx"), "files", "used by two models"),
    (set_entry("cloud", "file", "manifest.json"), "files", "cannot be the name of a model's file"),
    (set_entry("cloud", "file", "SIGNATURE"), "files", "cannot be the name of a model's file"),
    (set_entry("cloud", 7), "cloud", "must be an object"),
    (set_entry("largest_request", 80), "largest_request", "a request has 81 B"),
    (set_entry("chains", [[0]]), "chains", "stage 1 is in no chain"),
    (set_entry("chains", [[0, 2]]), "chains[0]", "0 to 1"),
    (set_entry("chains", [[0, 0], [1]]), "chains[0]", "twice"),
    (
        set_entry("operating_points", 0, "thresholds", [0.5]),
        "operating_points[0].thresholds",
        "2 ent",
    ),
    (
        set_entry("operating_points", 0, "thresholds", 0, 1e39),
        "operating_points[0].thresholds[0]",
        "",
    ),
    (set_entry("operating_points", 0, "accuracy", 1.5), "operating_points[0].accuracy", "0 to 1"),
    (set_entry("operating_points", 0, "chain", 1), "operating_points[0].chain", "0 to 0"),
    (set_entry("operating_points", 0, "guarantee", [1]), "operating_points[0].guarantee", "object"),
    (set_entry("active", 2), "active", "0 to 1"),
    (set_entry("files", "x.bin", {"sha256": "0" * 64, "size": 1}), "files", "'x.bin'"),
    (set_entry("files", "../x", {"sha256": "0" * 64, "size": 1}), "files.../x", "plain file name"),
    (set_entry("files", "stage_0.onnx", "sha256", "0"), "files.stage_0.onnx.sha256", "64"),
    (set_entry("files", "stage_0.onnx", "size", 1 << 40), "files.stage_0.onnx.size", "at most"),
    (set_entry("files", "sample.npz", ...), "files", "'sample.npz'"),
    (set_entry("max_instance_cost", 50.0), "operating_points[0]", "may cost"),
    (set_entry("max_instance_cost", -1.0), "max_instance_cost", "at least 0"),
    (set_entry("max_instance_cost", "much"), "max_instance_cost", "must be a number"),
    (set_entry("max_instance_cost", True), "max_instance_cost", "must be a number"),
]
INVALID_FIGURES: list[tuple[Edit, str, str]] = [
    (set_entry("min_recall", [0.5]), "min_recall", "2 entries"),
    (set_entry("class_rows", [1, 0.5]), "class_rows[1]", "whole number"),
    (
        set_entry("operating_points", 0, "recall", [0.5, 1.5]),
        "operating_points[0].recall[1]",
        "at most 1",
    ),
    (
        set_entry("operating_points", 0, "interval", [0.9, 0.1]),
        "operating_points[0].interval",
        "above",
    ),
    (set_entry("cloud", "backend", ""), "cloud.backend", "at least 1"),
]
INVALID_IMAGES: list[tuple[Edit, str, str]] = [
    (set_entry("instance", "dtype", "int32"), "instance.dtype", "uint8"),
    (set_entry("instance", "shape", [2, 3]), "features", "6 values"),
    (set_entry("instance", "shape", [70000, 2]), "instance.shape[0]", "at most 65535"),
    (set_entry("instance", "shape", [60000, 2]), "instance.shape", "120000 values"),
]
INVALID_REGRESSORS: list[tuple[Edit, str, str]] = [
    (set_entry("classes", [0, 1]), "classes", "must be empty"),
    (set_entry("task", "classify"), "classes", "at least 2"),
    (set_entry("stages", 0, "link", "softmax"), "stages[0]", "'identity'"),
    (set_entry("stages", 0, "score", "column"), "stages[0].outputs", "0 margins"),
    (set_entry("stages", 0, "outputs", 2), "stages[0].outputs", "2 margins"),
    (set_entry("operating_points", 0, "accuracy", 1.5), "operating_points[0].accuracy", "1"),
    (
        set_entry("cloud", DOCUMENT["cloud"] | {"file": "stage_0.onnx"}),
        "files",
        "used by two models",
    ),
    (set_entry("chains", [[0, 1], [1]]), "chains[0]", "one stage for task"),
]


def as_regressor(document: Document) -> Document:
    """Change a document to one of a regressor, with two chains of one stage and no cloud."""
    del document["files"]["cloud.onnx"]
    for entry in document["stages"]:
        entry.update(link="identity", score="margin", outputs=1)
    points = [
        point | {"thresholds": [ALWAYS_STOP], "chain": 0} for point in document["operating_points"]
    ]
    return document | {
        "task": "regress",
        "classes": [],
        "link": "identity",
        "cloud": None,
        "largest_request": 0,
        "chains": [[0], [1]],
        "operating_points": points,
    }


def with_optional_figures(document: Document) -> Document:
    """Add every optional entry to a document."""
    shares = [0.9, 0.3]
    document["operating_points"][0] |= {
        "accuracy_error": 0.1, "agreement": 0.5, "measured": "agreement", "trees": 2.5,
        "nbytes": 7, "max_cost": 9.5, "exit_shares": [0.5, 0.25, 0.25],
        "interval": [0.1, 0.2], "weighted_accuracy": 0.5, "recall": shares,
        "precision": [0.9, None], "balanced_accuracy": 0.6, "log_loss": 0.7, "brier_score": 0.1,
        "validation_groups": 3, "bytes": 4,
    }  # fmt: skip
    document["cloud"]["backend"] = "python:a:b"
    return document | {
        "class_rows": [40, 2], "reference_recall": [1.0, 0.5], "min_recall": [None, 0.25],
        "reference_weighted_accuracy": 0.5, "min_precision": [0.5, None],
        "max_instance_cost": 1e6,
    }  # fmt: skip


def as_images(document: Document) -> Document:
    """Change a document so that instances are images with four values as features."""
    instance = {"shape": [2, 2], "dtype": "uint8"}
    return document | {"instance": instance, "largest_request": request_bytes(3, item_size=1)}


DOCUMENT_CASES: list[tuple[Callable[[Document], Document], list[tuple[Edit, str, str]]]] = [
    (lambda document: document, INVALID_FIELDS),
    (with_optional_figures, INVALID_FIGURES),
    (as_images, INVALID_IMAGES),
    (as_regressor, INVALID_REGRESSORS),
]
INVALID_CASES = [
    (make_document, *invalid_field)
    for make_document, invalid_fields in DOCUMENT_CASES
    for invalid_field in invalid_fields
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_document", "edit", "field", "message"),
    INVALID_CASES,
    ids=[f"{field}-{message}" for _, _, field, message in INVALID_CASES],
)
def test_an_error_names_the_invalid_field(
    document: Document,
    make_document: Callable[[Document], Document],
    edit: Edit,
    field: str,
    message: str,
) -> None:
    changed_document = make_document(document)
    written_document = json.loads(read_document(changed_document).to_json())
    assert read_document(written_document) == read_document(changed_document)
    edit(changed_document)
    with pytest.raises(ManifestError) as error_info:
        read_document(changed_document)
    assert error_info.value.field == field
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_only_r_squared_may_be_negative(document: Document) -> None:
    regressor = as_regressor(document)
    regressor["operating_points"][0]["accuracy"] = -0.25
    assert read_document(regressor).operating_points[0].accuracy == -0.25
    with pytest.raises(ManifestError, match=r"operating_points\[0\]\.accuracy"):
        read_document(regressor | {"task": "rank"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not readable JSON"),
        (b"\xff\xfe", "not readable JSON"),
        (b"[" * 100000, "not readable JSON"),  # deeper than the recursion limit
        (b"[]", "must be an object"),
        (b'{"schema_version": 2, "schema_version": 2}', "lacks|is repeated"),
        (b'{"schema_version": NaN}', "not readable JSON"),
        # more digits than int() reads
        (b"1" * 5000, "not readable JSON|must be an object|range"),
    ],
)
def test_texts_other_than_a_manifest_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(content)


@pytest.mark.slow
@given(data=st.data())
def test_a_mutated_manifest_is_read_or_refused(
    unchanged_document: Document, data: st.DataObject
) -> None:
    # Choose an entry at any depth, and replace it by any JSON value.
    entry: Any = unchanged_document
    path: list[Any] = []
    while isinstance(entry, dict | list) and entry and (not path or data.draw(st.booleans())):
        keys = sorted(entry) if isinstance(entry, dict) else list(range(len(entry)))
        path.append(data.draw(st.sampled_from(keys)))
        entry = entry[path[-1]]
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
    changed_document = copy.deepcopy(unchanged_document)
    set_entry(*path, data.draw(json_values))(changed_document)
    try:
        manifest = read_document(changed_document)
    except ManifestError:
        return
    assert read_manifest(manifest.to_json()) == manifest
    assert np.isfinite(manifest.exit_costs()).all()


# -- the schema in the docs ----------------------------------------------------------------


def test_the_schema_in_the_docs_is_generated_from_the_records() -> None:
    schema = json_schema(ManifestDocument, "Manifest of a bundle")
    assert SCHEMA_FILE.read_bytes() == schema, "write docs/manifest.schema.json again"


def test_an_encoder_round_trips(document: Document) -> None:
    encoder = RowEncoder(
        (
            NumberColumn(name="mass", features=("age",)),
            BooleanColumn(name="on", features=("chol",)),
            CategoryColumn(name="who", features=("fbs",), categories=("A",)),
            OrdinalColumn(name="what", features=("thal",), categories=("A",)),
        ),
        frozenset({"err", "off", "none"}),
    )
    document["encoder"] = json.loads(encode_json(encoder))
    manifest = read_document(document)
    assert manifest.encoder == encoder
    assert read_manifest(manifest.to_json()) == manifest
    assert manifest.column_names == ("mass", "on", "who", "what")
    document["encoder"]["columns"].reverse()
    with pytest.raises(ManifestError, match=r"encoder\.columns: must give the manifest's features"):
        read_document(document)
    document["encoder"]["columns"][0]["kind"] = "shape"
    with pytest.raises(ManifestError, match=r"encoder\.columns\[0\]"):
        read_document(document)
