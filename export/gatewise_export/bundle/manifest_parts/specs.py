"""What the parts of a manifest hold, with their bounds: the types are what is read and written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np

from gatewise.decision import Link, Score
from gatewise.documents.json_reader import NEEDED, WRITTEN, JsonField, real, whole
from gatewise.prices import Price
from gatewise.tiers import Tier

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
SAMPLE: Final = "sample.npz"
INSTANCE: Final = "instance"
"""Name that stands for all values of an array, as a feature and as an input.

So does :data:`gatewise_signals.signal_input.WINDOW` for those of a window.
"""

LARGEST: Final = 1e300
FLOAT32: Final = float(np.finfo(np.float32).max)
MOST_FEATURES: Final = 65535
MOST_CLASSES: Final = 65535
MOST_STAGES: Final = 1024
MOST_POINTS: Final = 65536
MOST_BYTES: Final = 1 << 30
"""A file of a bundle is at most this large (1 GiB)."""
MOST_COUNT: Final = 1 << 53
_VERSION: Final = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)

ClassLabel = int | float | str | bool
Missing = Literal["allowed", "refused"]
StageKind = Literal["graph", "lazy"]
Origin = Literal["gatewise", "given"]
Measured = Literal["accuracy", "agreement"]
CloudKind = Literal["margins", "classifier"]
Task = Literal["classify", "regress", "rank"]


def _topic_level(field: JsonField) -> str:
    text = field.text(64)
    if any(c in "/+#" for c in text):
        field.fail(f"{text!r} holds '/', '+' or '#': it is a level of MQTT topics")
    return text


def _time(field: JsonField) -> str:
    text = field.text(64)
    try:
        offset = datetime.fromisoformat(text).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        field.fail(f"{text!r} is not a time in ISO 8601, UTC")
    return text


def _version(field: JsonField) -> str:
    return field.matching(_VERSION, "as 1.2.3")


def _missing(field: JsonField) -> dict[str, Missing]:
    parts = ("stages", "cloud")
    field.keys(parts)
    return {part: field[part].choice(get_args(Missing)) for part in parts}


def _plain_entries(entries: JsonField) -> dict[str, Any]:
    """Free entries, but only texts, numbers, true, false and null."""
    found = entries.entries(64)
    for entry in found.values():
        if isinstance(entry.value, dict | list):
            entry.fail("must be a plain value")
        if isinstance(entry.value, float):
            entry.number(-LARGEST, LARGEST)
    return {key: entry.value for key, entry in found.items()}


Text = Annotated[str, JsonField.text]
FileName = Annotated[str, JsonField.file_name]
TopicLevel = Annotated[str, _topic_level]
"""Topics of MQTT have it as a level: at most 64 bytes without ``/ + #``."""
Time = Annotated[str, _time]
Version = Annotated[str, _version]
MissingByPart = Annotated[dict[str, Missing], _missing]
PlainEntries = Annotated[dict[str, Any], _plain_entries]
Share = Annotated[float, real(0.0, 1.0)]
Merit = Annotated[float, real(-LARGEST, LARGEST)]
"""Narrower than that unless the task is ``regress``; R² has no floor."""
Threshold = Annotated[float, real(-FLOAT32, FLOAT32)]
SchemaVersion = Annotated[int, whole(SCHEMA_VERSION, SCHEMA_VERSION)]
FileSize = Annotated[int, whole(0, MOST_BYTES)]
Count = Annotated[int, whole(0, MOST_COUNT)]
Names = Annotated[tuple[Text, ...], (0, MOST_FEATURES)]
RowCounts = Annotated[tuple[Count, ...], (0, MOST_CLASSES)]
ByClass = Annotated[tuple[Share | None, ...], (0, MOST_CLASSES)]
"""A share of each class, in the order of the classes; None: none is known, or no bound."""


@dataclass(frozen=True)
class FeatureSpec:
    """A feature: name, own price, and the group it is acquired with (or None)."""

    name: Text
    own: Price
    group: Text | None = field(default=None, metadata=NEEDED)


@dataclass(frozen=True)
class GroupSpec:
    """A feature group: name, the price that its features share, and groups paid before it."""

    name: Text
    shared: Price
    requires: Annotated[tuple[Text, ...], (1, MOST_FEATURES)] = ()


@dataclass(frozen=True)
class StageSpec:
    """A stage: the file of its model, its size, what it reads, and how its outputs are to be read.

    `inputs` are names of features, in the order of the model's columns: all that the stage may
    acquire. `score` says whether the stop score is computed from the margins or is the last of the
    `outputs`, the columns of the model's output, and `link` what makes probabilities of margins.
    `kind` is ``graph``, an ONNX file: the stage acquires all its inputs, then runs; or ``lazy``,
    flat node arrays (:mod:`.flat_trees`): it acquires an input for an instance when a node on its
    path tests it. `carry` would be earlier stages whose outputs are further inputs; none in this
    version. `tier` is where the stage runs (:mod:`gatewise.tiers`). A graph of `origin` ``given``
    was given with its operators, not written by Gatewise: it needs onnxruntime, and on another kind
    of machine its margins may differ in their last bits.
    """

    file: FileName
    inputs: Names
    bytes: FileSize
    link: Link
    score: Score
    outputs: Annotated[int, whole(1, MOST_CLASSES + 1)]
    kind: StageKind = field(default="graph", metadata=NEEDED)
    carry: Annotated[tuple[Count, ...], (0, 0)] = field(default=(), metadata=NEEDED)
    tier: Tier = field(default="device", metadata=NEEDED)
    origin: Origin = "gatewise"


@dataclass(frozen=True)
class CloudSpec:
    """The high-cost model.

    `inputs` are names of features, in the order of the graph's columns. `kind` is ``margins``: one
    output, to be read by `link`; or ``classifier``: two outputs, the class index, int64, shape
    (n,), and the probabilities, float32, shape (n, n_classes). `backend` is what answers where
    `file` holds no graph: ``python:module:attribute``, or a URL. It is there to be read: a worker
    runs only the backend that its operator names. `carries` is what requests carry in the place of
    the inputs: the raw window, of which the worker computes them.
    """

    file: FileName
    inputs: Names
    kind: CloudKind
    link: Link
    backend: Text | None = None
    carries: Literal["window"] | None = None


@dataclass(frozen=True)
class OperatingPointSpec:
    """One setting of thresholds of one chain, with what it did on validation data.

    Of `thresholds` there is one for each stage of `chain`: it stops where its score is at least
    this (float32); None never stops. `measured` says what `accuracy` is: where there were no
    labels, the agreement with the high-cost model; of a regressor or ranker its score
    (:class:`Manifest`, `task`). `accuracy_error` is the standard error of the accuracy minus the
    high-cost model's (paired), `interval` its 95 % confidence interval, from rows that chose no
    threshold, `agreement` the share of answers that are the high-cost model's. `weighted_accuracy`
    is under class weights, where the models were fitted with some; `recall` and `precision` are by
    class, None for a class that no row has, or no answer is. Between the ends of `gate_range`,
    thresholds of the last stage on the device, the manifest's `min_recall` and `min_precision`
    hold; None as an end: never stops. `validation_groups` (subjects, machines, recordings) are what
    the figures rest on. `bytes` is the size of the stages that the point uses, packed as the
    manifest's `packed_as` says.
    """

    thresholds: Annotated[tuple[Threshold | None, ...], (0, MOST_STAGES)]
    expected_cost: Price
    accuracy: Merit
    offload_rate: Share
    guarantee: PlainEntries | None = field(default=None, metadata=NEEDED)
    accuracy_error: Price = field(default=0.0, metadata=WRITTEN)
    chain: Count = field(default=0, metadata=WRITTEN)
    agreement: Share | None = field(default=None, metadata=WRITTEN)
    weighted_accuracy: Share | None = None
    recall: ByClass | None = None
    precision: ByClass | None = None
    balanced_accuracy: Share | None = None
    log_loss: Price | None = None
    brier_score: Annotated[float, real(0.0, 2.0)] | None = None
    gate_range: tuple[Threshold | None, Threshold | None] | None = None
    interval: tuple[Share, Share] | None = None
    measured: Measured = "accuracy"
    validation_groups: Annotated[int, whole(1, MOST_COUNT)] | None = None
    bytes: Count | None = None


@dataclass(frozen=True)
class FileSpec:
    """SHA-256, as 64 hexadecimal digits, and size in bytes of a file."""

    sha256: str
    size: int


Features = Annotated[tuple[FeatureSpec, ...], (1, MOST_FEATURES)]
Groups = Annotated[tuple[GroupSpec, ...], (0, MOST_FEATURES)]
Stages = Annotated[tuple[StageSpec, ...], (1, MOST_STAGES)]
OperatingPoints = Annotated[tuple[OperatingPointSpec, ...], (1, MOST_POINTS)]
