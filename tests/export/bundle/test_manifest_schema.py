"""The JSON Schema of the manifest takes what the reader takes, and refuses what it can."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from gatewise.columns.encoders import (
    BooleanColumn,
    CategoryColumn,
    NumberColumn,
    RowEncoder,
    TimeColumn,
)
from gatewise_export import Bundle, BundleError
from gatewise_export.bundle.manifest import (
    CLASS_FIGURES,
    POINT_FIGURES,
    CloudSpec,
    FeatureSpec,
    OperatingPointSpec,
    StageSpec,
)
from gatewise_export.bundle.manifest_reader import NEEDED, read_manifest
from tests.export.bundle.test_manifest_reader import ALL_WRONG, of_values, tiered

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/manifest.schema.json").read_text())
#: What only a reader finds: one entry that does not go with another one.
REFERENCES = {
    "created", "link", "features", "features[0].group", "features[1].group", "groups",
    "stages[0].inputs[0]", "stages[0].file", "stages[0].bytes", "stages[0].outputs", "files",
    "chains", "chains[0][1]", "operating_points[0].thresholds", "operating_points[0].chain",
    "active", "stages[0].tier", "stages[1].tier",
}  # fmt: skip

check = fastjsonschema.compile(SCHEMA)


def refused(document: Any) -> bool:
    try:
        check(document)
    except fastjsonschema.JsonSchemaException:
        return True
    return False


def test_it_needs_what_the_reader_needs_and_knows_what_it_writes(document):
    assert set(SCHEMA["required"]) == set(NEEDED)
    for make in (lambda d: d, tiered, of_values):
        good = make(copy.deepcopy(document))
        check(good)
        check(read_manifest(json.dumps(good)).to_document())


def test_old_and_full_manifests_are_taken(document):
    document["prices"]["gateway"] = 2.0
    document["reference_accuracy"] = 0.9
    document["chains"] = [[0, 1]]
    document["operating_points"][0] |= {"chain": 0, "accuracy_error": 0.1, "agreement": 0.5}
    document["operating_points"][0]["guarantee"] = {"level": 0.95, "what": "loss", "n": 3}
    check(document)
    for key in ("chains", "reference_accuracy"):
        del document[key]
    check(document)


def test_it_knows_the_keys_that_are_left_out_where_they_are_not_known(document):
    """A key that the product writes and the schema does not know is missing from the docs."""
    definitions = SCHEMA["definitions"]
    assert set(CLASS_FIGURES) <= set(SCHEMA["properties"])
    assert set(POINT_FIGURES) <= set(definitions["point"]["properties"])
    for spec, name in (
        (StageSpec, "stage"), (CloudSpec, "cloud"), (OperatingPointSpec, "point"),
        (FeatureSpec, "feature"),
    ):  # fmt: skip
        assert {f.name for f in fields(spec)} == set(definitions[name]["properties"])
    shares = [0.5, None]
    document |= {
        "instance": {"shape": [2, 2], "dtype": "uint8", "encoding": "jpeg"},
        "reference_weighted_accuracy": 0.5, "reference_recall": shares, "class_rows": [3, 4],
        "min_recall": shares, "min_precision": [None, None],
    }  # fmt: skip
    document["operating_points"][0] |= {
        "measured": "agreement", "interval": [0.1, 0.2], "weighted_accuracy": 0.5, "recall": shares,
        "precision": shares, "balanced_accuracy": 0.5, "log_loss": 3.0, "brier_score": 0.2,
        "gate_range": [-1.0, None],
    }  # fmt: skip
    document["stages"][0]["origin"] = "given"
    document["cloud"]["backend"] = "python:a:b"
    check(document)
    instance = document["instance"]
    assert rewritten(document)["instance"] == instance
    for change in ({"encoding": "png"}, {"dtype": "int8"}, {"shape": [4]}):
        document["instance"] = instance | change
        with pytest.raises(BundleError, match=r"^manifest\.json: instance"):
            rewritten(document)
    document["instance"] = {"shape": [2, 2], "dtype": "uint8"}  # none is written as none
    assert rewritten(document)["instance"] == document["instance"]


def rewritten(document):
    """A manifest's document, read and written again."""
    return json.loads(read_manifest(json.dumps(document)).to_json())


def test_encoders_are_taken(document):
    encoder = RowEncoder(
        (
            NumberColumn(name="mass", features=("age",)),
            BooleanColumn(name="on", features=("chol", "on missing"), fill=(0.0,)),
            CategoryColumn(name="who", features=("a", "b"), categories=("A", "B")),
            CategoryColumn(name="what", features=("w",), categories=("A",), form="ordinal"),
            TimeColumn(name="when", features=("m", "h"), parts=("month", "hour")),
        ),
        frozenset({"err"}),
    )
    document["encoder"] = encoder.to_document()
    check(document)
    document["encoder"]["columns"][0]["kind"] = "shape"
    assert refused(document)


@pytest.mark.parametrize(
    ("make", "edit", "field"),
    [w[:3] for w in ALL_WRONG],
    ids=[f"{f}-{w}" for *_, f, w in ALL_WRONG],
)
def test_what_is_wrong_in_itself_is_refused(document, make, edit, field):
    good = make(document)
    edit(good)
    assert refused(good) or field in REFERENCES


def test_an_unknown_key_is_refused_everywhere(document):
    document["chains"] = [[0, 1]]
    parts = [
        document, document["features"][0], document["groups"][0], document["prices"],
        document["missing"], document["stages"][1], document["cloud"],
        document["operating_points"][1], document["files"]["sample.npz"],
    ]  # fmt: skip
    for part in parts:
        part["strange"] = 1
        assert refused(document)
        del part["strange"]
    check(document)


@pytest.mark.slow
def test_real_bundles_of_every_kind_are_taken(packed: Bundle):
    check(json.loads((packed.path / "manifest.json").read_text()))
