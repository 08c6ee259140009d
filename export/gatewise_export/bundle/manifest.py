"""The manifest of a bundle: ``manifest.json`` as typed records, and figures that follow from it.

:class:`ManifestDocument` is the JSON document, field by field. :class:`Manifest` adds the readers
of raw columns and windows, lists the values of arrays one by one, and answers a runtime's
questions. It is read by :mod:`.manifest_reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import exit_costs, last_exit_within
from gatewise.columns.encoders import RowEncoder
from gatewise.costs import FeatureCosts
from gatewise.decision import Link, Score
from gatewise.documents import (
    END,
    Amount,
    FileName,
    Finite,
    Meta,
    Record,
    Share,
    Text,
    encode_json,
)
from gatewise.graph_loading import LoadLimits
from gatewise.models.instances import InstanceSpec
from gatewise.operating_point import ByClass, Count, OperatingPoint
from gatewise.prices import CloudPrices
from gatewise_export.bundle.errors import ManifestError
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.document import SignalRecord, write_signal
from gatewise_signals.signal_input import WINDOW, SignalInput

SCHEMA_VERSION: Final = 2
MANIFEST: Final = "manifest.json"
SAMPLE: Final = "sample.npz"
RANGES: Final = "ranges.npz"
"""Ranges of the training rows; a bundle may lack them."""
#: Name that stands for all values of an array, as a feature and as an input; so does WINDOW.
INSTANCE: Final = "instance"

MAX_FEATURES: Final = 65535
MAX_CLASSES: Final = 65535
MAX_STAGES: Final = 1024
MAX_POINTS: Final = 65536
#: Bytes of a file (1 GiB).
MAX_FILE_BYTES: Final = 1 << 30

Mask: TypeAlias = NDArray[np.bool_]
ClassLabel: TypeAlias = int | float | str | bool
Missing = Literal["allowed", "refused"]
StageKind = Literal["trees", "linear", "kernel", "lazy", "graph"]
CloudKind = Literal["margins", "classifier"]
Task = Literal["classify", "regress", "rank"]

#: Topics of MQTT have it as a level.
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
        pattern=rf"^[0-9]{{1,4}}\.[0-9]{{1,4}}\.[0-9]{{1,4}}{END}", description="a version as 1.2.3"
    ),
]
Sha256 = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{64}}{END}", description="64 hexadecimal digits")]
Names = Annotated[tuple[Text, ...], Meta(max_length=MAX_FEATURES)]


class FeatureSpec(Record, frozen=True):
    """A feature: name, own price, and the group it is acquired with (or None)."""

    name: Text
    own: Amount
    group: Text | None = None


class GroupSpec(Record, frozen=True):
    """A feature group: name, the price that its features share, and groups paid before it."""

    name: Text
    shared: Amount
    requires: Names = ()


class PriceSpec(Record, frozen=True):
    """Prices of an offload in addition to its features: per request, per byte, per evaluation."""

    request: Amount
    byte: Amount
    evaluation: Amount


class MissingSpec(Record, frozen=True):
    """Whether NaN is a value to the stages, and to the high-cost model."""

    stages: Missing
    cloud: Missing


class StageSpec(Record, frozen=True):
    """A stage: its model's files, its inputs, and the meaning of its outputs.

    A model of kind ``trees``, ``linear`` or ``kernel`` has two files: `arrays`, npz, and `graph`,
    ONNX, written from them; the stage acquires all its inputs, then runs. ``lazy`` are trees
    without a graph: the stage acquires an input for an instance when a node on its path tests it.
    ``graph`` is a graph that was given: it needs onnxruntime, and on another kind of machine its
    margins may differ in their last bits.

    `inputs` are names of features, in the order of the model's columns: all that the stage may
    acquire. `bytes` is the size of its files. `score` says whether the stop score is computed from
    the margins or is the last of the `outputs`, the columns of the model's output; `link` makes
    probabilities of margins.
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
        """Names of its files."""
        return tuple(name for name in (self.arrays, self.graph) if name is not None)


class ProbeSpec(Record, frozen=True):
    """Rows on which the graph was compared with the model that it was made of, at packing.

    `kinds` are their numbers by kind. The model itself answers `undecided` rows differently when it
    adds up in float64.
    """

    rows: Count
    undecided: Count
    kinds: dict[Text, Count]


class CloudSpec(Record, frozen=True):
    """The high-cost model.

    `inputs` are names of features, in the order of the graph's columns. `kind` is ``margins``: one
    output, to be read by `link`; or ``classifier``: two outputs, the class index, int64, shape
    (n,), and the probabilities, float32, shape (n, n_classes). `backend` names the model where
    `file` holds no graph: ``python:module:attribute``, or a URL. It is there to be read: a worker
    runs only the backend that its operator names. `probed` is null where nothing was converted.
    """

    file: FileName
    inputs: Names
    kind: CloudKind
    link: Link
    backend: Text | None = None
    probed: ProbeSpec | None = None


class FileSpec(Record, frozen=True):
    """SHA-256 and size in bytes of a file."""

    sha256: Sha256
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]


class ManifestDocument(Record, frozen=True, kw_only=True):
    """The document ``manifest.json``.

    The bundle has the `schema_version` of this form, `min_runtime_version`, the oldest Gatewise
    that can read it, `name` and `version`, levels of MQTT topics, `created`, ISO 8601 in UTC, and
    its `files` by name.

    `task` says whether an answer is a class, a measured value or a document's score. `classes` are
    the user's labels, all of one type, whose indices models give. A bundle that answers with values
    lacks a cloud; each of its chains is one stage with one margin and link ``identity``, and that
    margin is the answer.

    The `features` of an instance are its columns, in order, `groups` share prices, `prices` are an
    offload's, and `missing` says whether NaN is a value. `encoder` makes the features from raw
    columns, `signal` from windows; if that is raw, the window's own values are the last features,
    and a request holds these. `instance` is shape and type of an array, whose values in row-major
    order are the features; None: a row of float32 features. One name, ``instance`` or ``window``,
    may stand for all values of an array of one price.

    `every_stage` lists the stages of all chains, `chains` hold their indices, `link` is the last
    listed stage's, `cloud` the high-cost model. `largest_request` is the payload of
    a request with one instance, in bytes; 0 without a cloud. `loading` says what loading each given
    graph may take; None: limits that follow from its size.

    `operating_points` hold the figures, `active` is the index of the active one. On validation data
    `reference_accuracy`, `reference_weighted_accuracy` and `reference_recall`, by class, are the
    high-cost model's, and `class_rows` are the rows of each class. `min_recall` and `min_precision`
    are bounds by class that the active point keeps. An instance may cost at most
    `max_instance_cost` at any point, whatever its values: a device and the cloud end its way before
    an exit that could cost more.
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


class Manifest(ManifestDocument, frozen=True, kw_only=True, dict=True):
    """A manifest with all its features listed, and its signal ready to compute.

    It has the attributes of :class:`ManifestDocument`; `features` and inputs name each value of an
    array.
    """

    signal: SignalInput | None = None  # type: ignore[assignment]

    def to_json(self) -> bytes:
        """Write the manifest as JSON text; the same manifest gives the same bytes."""
        signal = None if self.signal is None else write_signal(self.signal)
        models = {"every_stage": tuple(map(self._with_listed_inputs, self.every_stage))}
        if self.cloud is not None:
            models["cloud"] = self._with_listed_inputs(self.cloud)
        listed = msgspec.structs.replace(
            self, features=self._listed_features(), signal=signal, **models
        )
        return encode_json(listed, indent=1)

    # -- of the bundle -----------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.version}"

    @property
    def release(self) -> str:
        """Name and version as releases are named: ``digits/8``."""
        return f"{self.name}/{self.version}"

    @property
    def answers_values(self) -> bool:
        """Whether answers are values, not classes: the task is regress or rank."""
        return self.task != "classify"

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 where answers are values."""
        return len(self.classes)

    # -- of the active operating point -------------------------------------------------------

    @property
    def active_point(self) -> OperatingPoint:
        """The active operating point."""
        return self.operating_points[self.active]

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Stages of the active point's chain, in order."""
        return tuple(self.every_stage[s] for s in self.chains[self.active_point.chain])

    @property
    def last_exit(self) -> int:
        """The last exit that an instance may take; the number of stages: the high-cost model."""
        n_exits = len(self.stages) + (self.cloud is not None)
        if self.max_instance_cost is None:
            return n_exits - 1
        return min(n_exits - 1, last_exit_within(self.exit_costs(), self.max_instance_cost))

    def with_active(self, point: int) -> Manifest:
        """Get the same manifest at operating point `point`; ManifestError if it lacks that."""
        if not 0 <= point < len(self.operating_points):
            raise ManifestError(
                "active", f"must be 0 to {len(self.operating_points) - 1}, not {point}"
            )
        return msgspec.structs.replace(self, active=point)

    def with_bounds(self, min_recall: ByClass, min_precision: ByClass) -> Manifest:
        """Get the same manifest under other bounds on classes, `min_recall` and `min_precision`."""
        recall, precision = (
            share if any(s is not None for s in share) else None
            for share in (min_recall, min_precision)
        )
        return msgspec.structs.replace(self, min_recall=recall, min_precision=precision)

    def keeps_bounds(self, point: int) -> bool:
        """Whether operating point `point` kept the bounds on classes on validation data."""
        figures = self.operating_points[point]
        pairs = ((self.min_recall, figures.recall), (self.min_precision, figures.precision))
        return all(
            bound is None
            or (shares is not None and (share := shares[c]) is not None and share >= bound)
            for bounds, shares in pairs
            for c, bound in enumerate(bounds or ())
        )

    # -- of an instance ----------------------------------------------------------------------

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of an instance's columns."""
        return tuple(f.name for f in self.features)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of an instance's columns as sensors and tables have them: raw, if encoded."""
        return self.feature_names if self.encoder is None else self.encoder.names

    @cached_property
    def names_of_columns(self) -> tuple[str, ...]:
        """Name of the raw column of each feature; its own where it is not encoded."""
        if self.encoder is None:
            return self.feature_names
        return tuple(self.encoder.names[c] for c in self.encoder.column_of)

    @property
    def acquired_names(self) -> tuple[str, ...]:
        """Names that a device must provide: the columns, or the window and functions of blocks."""
        if self.signal is None:
            return self.column_names
        blocks = [b for b in self.signal.graph.blocks if isinstance(b, FunctionBlock)]
        size = "x".join(map(str, self.signal.shape))
        return (f"window {size}", *(f"function {block.name}" for block in blocks))

    @property
    def request_dtype(self) -> np.dtype[Any]:
        """Type of a request's values: that of arrays and of raw windows, else float32."""
        if self.instance is not None:
            return np.dtype(self.instance.dtype)
        raw = self.signal is not None and self.signal.raw
        return np.dtype(self.signal.dtype if raw and self.signal is not None else "float32")

    def stage_inputs(self, stage: int) -> NDArray[np.intp]:
        """Columns that the stage at index `stage` reads, in its order."""
        return self._indices(self.stages[stage].inputs)

    def cloud_inputs(self) -> NDArray[np.intp]:
        """Columns that the high-cost model reads, in its order; none without one."""
        return self._indices(() if self.cloud is None else self.cloud.inputs)

    def acquired(self, stage: int, columns: Mask | None = None) -> Mask:
        """Features that stage `stage` acquires, bool (n_features,): all its inputs.

        `columns`, bool (n, n_inputs), restricts them to the inputs that each instance acquires; the
        shape is then (n, n_features).
        """
        inputs = self.stage_inputs(stage)
        shape = (len(self.features),) if columns is None else (len(columns), len(self.features))
        acquired = np.zeros(shape, np.bool_)
        acquired[..., inputs] = True if columns is None else columns
        return acquired

    # -- of costs ----------------------------------------------------------------------------

    def feature_costs(self) -> FeatureCosts:
        """Prices of the features, with their names."""
        return FeatureCosts(
            [f.own for f in self.features],
            group=[f.group for f in self.features],
            shared={g.name: g.shared for g in self.groups},
            requires={g.name: g.requires for g in self.groups if g.requires},
            names=self.feature_names,
        )

    def cloud_prices(self) -> CloudPrices:
        """Prices of an offload in addition to its features."""
        prices = self.prices
        return CloudPrices(
            request=prices.request,
            byte=prices.byte,
            evaluation=prices.evaluation,
            item_size=self.request_dtype.itemsize,
        )

    def exit_costs(self, acquired: Sequence[Mask] | None = None) -> NDArray[np.float64]:
        """Cost of an instance that leaves at each stage and, last, of an offloaded one.

        `acquired` are the features that each stage acquires, bool (n_features,) or (n, n_features);
        by default all that it may, so that costs are upper bounds where a stage is lazy. Returns
        float64 (n_exits,), or (n_exits, n): n_stages + 1 exits, one less without a high-cost model.
        """
        costs = self.feature_costs()
        if acquired is None:
            acquired = [self.acquired(s) for s in range(len(self.stages))]
        if self.cloud is None:
            return exit_costs(costs, acquired)[:-1]
        carried = self.cloud_inputs()
        request = self.cloud_prices().of_offload(len(carried))
        return exit_costs(costs, acquired, costs.mask(carried), request=request)

    # -- parts -------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.feature_names)}

    def _indices(self, names: Sequence[str]) -> NDArray[np.intp]:
        columns = self._columns
        return np.array([columns[n] for n in names], np.intp)

    @property
    def _arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of an instance or a window, by the name that may stand for them."""
        # an instance lists all its values; a raw window's values follow the blocks' features
        arrays = {} if self.instance is None else {INSTANCE: tuple(self.instance.names)}
        window = () if self.signal is None else self.signal.window_names
        return arrays | ({WINDOW: window} if window else {})

    def _listed_features(self) -> tuple[FeatureSpec, ...]:
        """Features as a document lists them: one stands for an array's values of one price."""
        features = list(self.features)
        for array, names in self._arrays.items():
            values = features[-len(names) :]
            prices = {(f.own, f.group) for f in values}
            if tuple(f.name for f in values) == names and len(prices) == 1:
                features = [
                    *features[: -len(names)],
                    msgspec.structs.replace(values[0], name=array),
                ]
        return tuple(features)

    def _with_listed_inputs(self, model: Any) -> Any:
        """Get a stage or the high-cost model with an array among its inputs, not its values."""
        for array, names in self._arrays.items():
            if model.inputs == names:
                return msgspec.structs.replace(model, inputs=(array,))
        return model
