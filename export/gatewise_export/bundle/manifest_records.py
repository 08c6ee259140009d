"""Records of ``manifest.json``, the description of a bundle.

The types bound the values, because manifests are untrusted. :mod:`.manifest_reader` checks the
rules between their fields. tests/export/bundle compares docs/manifest.schema.json with these
records, and its hostile bundles with the reader.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from gatewise.columns.encoders import RowEncoder
from gatewise.decision import Link, Score
from gatewise.documents import END, Amount, FileName, Finite, Meta, Record, Share, Text
from gatewise.graph_loading import LoadLimits
from gatewise.models.booster_files import Library
from gatewise.models.instances import InstanceSpec
from gatewise.operating_point import ByClass, Count, OperatingPoint
from gatewise_signals.document import SignalRecord

#: Name of the file with a bundle's manifest.
MANIFEST: Final = "manifest.json"
#: Name of the file with rows and expected outputs, for the self-test.
SAMPLE: Final = "sample.npz"
#: Name of the optional file with the ranges of the training rows.
RANGES: Final = "ranges.npz"
#: Feature or input name that stands for all values of an array.
INSTANCE: Final = "instance"

#: Bounds on the lists of a manifest, which is untrusted; they are far above those of real bundles.
MAX_FEATURES: Final = 65535
MAX_CLASSES: Final = 65535
MAX_STAGES: Final = 1024
MAX_POINTS: Final = 65536
#: Largest size of a file in bytes (1 GiB).
MAX_FILE_BYTES: Final = 1 << 30

ClassLabel: TypeAlias = int | float | str | bool
Missing = Literal["allowed", "refused"]
StageKind = Literal["trees", "linear", "kernel", "lazy", "graph"]
CloudKind: TypeAlias = Literal["margins", "classifier"] | Library
Task = Literal["classify", "regress", "rank"]

#: Text that can be a level of an MQTT topic.
TopicLevel = Annotated[
    str,
    Meta(
        pattern=rf"^[^/+#]+{END}",
        max_length=64,
        description="a level of MQTT topics: without '/', '+' or '#'",
    ),
]
Version = Annotated[
    str,
    Meta(
        pattern=rf"^[0-9]{{1,4}}\.[0-9]{{1,4}}\.[0-9]{{1,4}}{END}",
        description="a version such as 1.2.3",
    ),
]
Sha256 = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{64}}{END}", description="64 hexadecimal digits")]
Names = Annotated[tuple[Text, ...], Meta(max_length=MAX_FEATURES)]


def version_numbers(version: str) -> tuple[int, ...]:
    """Numbers of a version, which compare as versions do.

    >>> version_numbers("0.10.0") > version_numbers("0.9.2")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


class FeatureSpec(Record, frozen=True):
    """A feature with its own price and, if it has one, its group."""

    name: Text
    own: Amount
    group: Text | None = None


class GroupSpec(Record, frozen=True):
    """A feature group with its shared price and the groups that it requires."""

    name: Text
    shared: Amount
    requires: Names = ()


class PriceSpec(Record, frozen=True):
    """Prices of an offload in addition to its features: per request, per byte, per evaluation."""

    request: Amount
    byte: Amount
    evaluation: Amount


class MissingSpec(Record, frozen=True):
    """Whether the stages and the high-cost model accept NaN."""

    stages: Missing
    cloud: Missing


class StageSpec(Record, frozen=True):
    """A stage: its model's files, its inputs, and the meaning of its outputs.

    Attributes
    ----------
    kind : {"trees", "linear", "kernel", "lazy", "graph"}
        ``trees``, ``linear`` and ``kernel`` models run after all inputs are acquired. ``lazy``
        trees acquire an input when a node on the instance's path tests it. A ``graph`` is an ONNX
        file from the user; it needs onnxruntime, and the last bits of its margins may differ
        between machines.
    inputs : tuple of str
        Names of the features that the stage may acquire, in the order of the model's columns.
    bytes : int
        Total size of its files.
    link : {"identity", "sigmoid", "softmax"}
        Function from margins to probabilities.
    score : str
        Name of the rule of the stop score, one of :data:`gatewise.decision.STOP_RULES`.
    outputs : int
        Number of columns of the model's output.
    arrays, graph : str or None
        Files of its flat arrays and of the ONNX graph written from them. A ``lazy`` stage has no
        graph, and a ``graph`` stage has no arrays.
    """

    kind: StageKind
    inputs: Names
    bytes: Count
    link: Link
    score: Score
    outputs: Annotated[int, Meta(ge=1, le=MAX_CLASSES + 1)]
    arrays: FileName | None = None
    graph: FileName | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the stage's files."""
        return tuple([name for name in (self.arrays, self.graph) if name is not None])


class ProbeSpec(Record, frozen=True):
    """Rows on which packing compared a model with the file written from it.

    Attributes
    ----------
    rows : int
    undecided : int
        Rows with a label that depends on rounding. The label changes if the model sums in float64,
        or two classes have the same probability.
    kinds : dict
        Number of rows of each kind.
    """

    rows: Count
    undecided: Count
    kinds: dict[Text, Count]


class CloudSpec(Record, frozen=True):
    """The description of the high-cost model.

    Attributes
    ----------
    file : str
    inputs : tuple of str
        Names of features, in the order of the model's columns.
    kind : {"margins", "classifier", "lightgbm", "xgboost", "catboost"}
        A graph of kind ``margins`` outputs margins, which `link` turns into probabilities. A graph
        of kind ``classifier`` outputs the class index, int64 (n,), and the probabilities, float32
        (n, n_classes). Any other kind is the name of the library that reads the file.
    link : {"identity", "sigmoid", "softmax"}
    backend : str or None
        Import path of the model, ``python:module:attribute``, if `file` is not a graph. It informs
        people only: a worker runs the backend that its operator names.
    probed : ProbeSpec or None
        None if the model was not converted.
    graph_problem : str or None
        Why the file is a library's model file instead of a graph.
    """

    file: FileName
    inputs: Names
    kind: CloudKind
    link: Link
    backend: Text | None = None
    probed: ProbeSpec | None = None
    graph_problem: Text | None = None


class FileSpec(Record, frozen=True):
    """SHA-256 and size in bytes of a file."""

    sha256: Sha256
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]


class ManifestDocument(Record, frozen=True, kw_only=True):
    """The document ``manifest.json``.

    Attributes
    ----------
    schema_version : int
        Version of the document's format. Readers refuse other versions.
    name, version : str
        Name and version of the bundle. They are also levels of MQTT topics.
    created : str
        ISO 8601 time in UTC.
    min_runtime_version : str
        The oldest Gatewise that can read the bundle.
    task : {"classify", "regress", "rank"}
        Whether an answer is a class, a value or a ranking score. A bundle that answers with values
        or scores has no cloud, and each chain is one stage whose margin is the answer.
    classes : tuple
        Labels, all of one type; models answer with their indices.
    link : {"identity", "sigmoid", "softmax"}
        Link of the last stage in the list.
    instance : InstanceSpec or None
        Shape and type of an array whose values, in row-major order, are the features; None for a
        row of float32 features.
    features : tuple of FeatureSpec
        Columns of an instance, in order. A feature named ``instance`` or ``window`` stands for all
        values of an array with one price.
    groups : tuple of GroupSpec
        Groups of features with a shared price.
    prices : PriceSpec
        Prices of an offload in addition to its features.
    missing : MissingSpec
        Whether the models accept NaN.
    every_stage : tuple of StageSpec
        Stages of all chains, ``stages`` in the document; the stages of a :class:`.Manifest` are
        those of its active chain.
    chains : tuple of tuple of int
        Candidate cascades as indices of stages.
    cloud : CloudSpec or None
        The high-cost model.
    largest_request : int
        Bytes of the payload of a request with one instance; 0 without a cloud.
    loading : LoadLimits or None
        Memory and time for loading a graph; None for limits that follow from its size.
    operating_points : tuple of OperatingPoint
    active : int
        Index of the active operating point.
    reference_accuracy, reference_weighted_accuracy : float or None
        Accuracy of the high-cost model on validation rows, and its accuracy with their weights.
    reference_recall : tuple or None
        Recalls of the high-cost model by class.
    class_rows : tuple of int or None
        Validation rows of each class.
    min_recall, min_precision : tuple or None
        Bounds on recall and precision by class that the active point satisfies.
    max_instance_cost : float or None
        Largest cost of any instance. An exit that could cost more is not used.
    files : dict
        SHA-256 and size of each file by name.
    encoder : RowEncoder or None
        Encoder from raw columns to features.
    signal : SignalRecord or None
        Blocks that compute the features from windows. If the high-cost model reads raw windows,
        their values are the last features.
    """

    schema_version: Literal[2]
    name: TopicLevel
    version: TopicLevel
    created: Text
    min_runtime_version: Version
    task: Task
    classes: Annotated[tuple[ClassLabel, ...], Meta(max_length=MAX_CLASSES)]
    link: Link
    instance: InstanceSpec | None = None
    features: Annotated[tuple[FeatureSpec, ...], Meta(min_length=1, max_length=MAX_FEATURES)]
    groups: Annotated[tuple[GroupSpec, ...], Meta(max_length=MAX_FEATURES)]
    prices: PriceSpec
    missing: MissingSpec
    every_stage: Annotated[tuple[StageSpec, ...], Meta(min_length=1, max_length=MAX_STAGES)] = (
        msgspec.field(name="stages")
    )
    chains: Annotated[tuple[tuple[Count, ...], ...], Meta(min_length=1, max_length=MAX_STAGES)]
    cloud: CloudSpec | None
    largest_request: Count
    loading: LoadLimits | None = None
    operating_points: Annotated[
        tuple[OperatingPoint, ...], Meta(min_length=1, max_length=MAX_POINTS)
    ]
    active: Count
    reference_accuracy: Finite | None = None
    reference_weighted_accuracy: Share | None = None
    reference_recall: ByClass | None = None
    class_rows: Annotated[tuple[Count, ...], Meta(max_length=MAX_CLASSES)] | None = None
    min_recall: ByClass | None = None
    min_precision: ByClass | None = None
    max_instance_cost: Amount | None = None
    files: dict[FileName, FileSpec]
    encoder: RowEncoder | None = None
    signal: SignalRecord | None = None
