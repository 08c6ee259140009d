"""What a bundle says about itself: ``manifest.json``, schema version 1.

A device and a cloud worker read this with the standard library and numpy alone. Reading is
strict: every type, range, name and reference is checked, unknown keys are refused, and
:class:`ManifestError` names the field. Thresholds live only here, so that another operating
point leaves every graph as it is.

A system may hold several *chains* of stages (Adapt fits one for each strength of its penalty);
each operating point belongs to one. `Manifest.stages` are those of the active point's chain, in
order: all that a device needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import exit_costs, last_exit_within
from gatewise.columns.encoders import RowEncoder
from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.decision import Link
from gatewise.documents.json_reader import NEEDED, WRITTEN, write_record
from gatewise.models.instances import InstanceSpec
from gatewise.prices import Price
from gatewise.tiers import PackedAs, Tier, cascade_costs
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_parts import specs
from gatewise_export.bundle.manifest_parts.specs import (
    INSTANCE,
    MANIFEST,
    SAMPLE,
    SCHEMA_VERSION,
    ByClass,
    ClassLabel,
    CloudKind,
    CloudSpec,
    FeatureSpec,
    FileSpec,
    GroupSpec,
    OperatingPointSpec,
    StageKind,
    StageSpec,
    Task,
)
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.document import write_signal
from gatewise_signals.signal_input import WINDOW, SignalInput

__all__ = [
    "MANIFEST", "SAMPLE", "ByClass", "ClassLabel", "CloudKind", "CloudSpec", "FeatureSpec",
    "FileSpec", "GroupSpec", "Manifest", "OperatingPointSpec", "StageKind", "StageSpec", "Task",
    "request_dtype",
]  # fmt: skip

Mask = NDArray[np.bool_]


def request_dtype(instance: InstanceSpec | None, signal: SignalInput | None) -> np.dtype[Any]:
    """Type of a request's values: that of arrays and of raw windows, else float32."""
    if instance is not None:
        return np.dtype(instance.dtype)
    return np.dtype(signal.dtype if signal is not None and signal.raw else "float32")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a bundle.

    Of the bundle: `schema_version` of this form, `min_runtime_version`, the oldest Gatewise that
    can read it, `name` and `version`, levels of MQTT topics of at most 64 bytes, `created`, ISO
    8601 in UTC, and its `files` by name.

    Of an answer: `task` says whether it is a class, a measured value or a document's score; of
    classes, `classes` are the user's labels, all of one type, whose indices models give. Where it
    is a value, there is no cloud, each chain is one stage with one margin and link ``identity``,
    that margin is the answer, and `accuracy` of an operating point is the estimator's own score: R²
    of a regressor, Average Precision@5 of a ranker.

    Of an instance: `features` are its columns, in order, `groups` share prices, `prices` are those
    of an offload, and `missing` says, under ``stages`` and ``cloud``, whether NaN is a value. Of
    raw columns `encoder` makes the features, of windows `signal`; if that is raw, the window's own
    values are the last features, and a request holds these. `instance` is shape and type of an
    array, whose values in row-major order are the features; None: a row of float32 features.

    Of models: `every_stage` is a stage of some chain, `chains` hold indices of these, `link` is
    that of the last stage listed (each has its own), `cloud` the high-cost model.

    Of what they do: `operating_points`, `active` the index of the active one. On validation data
    `reference_accuracy`, `reference_weighted_accuracy` and `reference_recall`, by class, are the
    high-cost model's, and `class_rows` are the rows of each class. `min_recall` and `min_precision`
    are bounds by class that the active point keeps, and that a pacer may not break. `packed_as` is
    what the points' `bytes` count: tables of C99, or files of stages. An instance may cost at most
    `max_instance_cost` at any point, whatever its values: a device and what is behind it end its
    way before an exit that could cost more.
    """

    schema_version: specs.SchemaVersion = field(default=SCHEMA_VERSION, metadata=NEEDED)
    name: specs.TopicLevel
    version: specs.TopicLevel
    created: specs.Time
    min_runtime_version: specs.Version = field(default="0.1.0", metadata=NEEDED)
    task: Task = field(default="classify", metadata=NEEDED)
    classes: tuple[ClassLabel, ...]
    link: Link
    instance: InstanceSpec | None = None
    features: specs.Features
    groups: specs.Groups
    prices: CloudPrices
    missing: specs.MissingByPart
    every_stage: specs.Stages = field(metadata={"key": "stages"})
    chains: tuple[tuple[int, ...], ...] = field(metadata=WRITTEN)
    cloud: CloudSpec | None
    operating_points: specs.OperatingPoints
    active: int
    reference_accuracy: specs.Merit | None = field(default=None, metadata=WRITTEN)
    reference_weighted_accuracy: specs.Share | None = None
    reference_recall: ByClass | None = None
    class_rows: specs.RowCounts | None = None
    min_recall: ByClass | None = None
    min_precision: ByClass | None = None
    packed_as: PackedAs | None = None
    max_instance_cost: Price | None = None
    files: dict[str, FileSpec]
    encoder: RowEncoder | None = None
    signal: SignalInput | None = None
    _columns: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        columns = {f.name: k for k, f in enumerate(self.features)}
        object.__setattr__(self, "_columns", columns)

    # -- for a runtime ---------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.version}"

    @property
    def release(self) -> str:
        """Name and version as releases are named: ``digits/8``."""
        return f"{self.name}/{self.version}"

    @property
    def active_point(self) -> OperatingPointSpec:
        """The active operating point."""
        return self.operating_points[self.active]

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Stages of the active point's chain, in order."""
        return tuple(self.every_stage[s] for s in self.chains[self.active_point.chain])

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where these stages run."""
        return tuple(stage.tier for stage in self.stages)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of an instance."""
        return tuple(f.name for f in self.features)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of an instance's columns as sensors and tables have them: raw, if encoded."""
        return self.feature_names if self.encoder is None else self.encoder.names

    @property
    def acquired_names(self) -> tuple[str, ...]:
        """Names of what a device must have: the columns, or the window and functions of blocks."""
        if self.signal is None:
            return self.column_names
        blocks = [b for b in self.signal.graph.blocks if isinstance(b, FunctionBlock)]
        size = "x".join(map(str, self.signal.shape))
        return (f"window {size}", *(f"function {block.name}" for block in blocks))

    @property
    def answers_values(self) -> bool:
        """Whether answers are values, not classes: the task is regress or rank."""
        return self.task != "classify"

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 where answers are values."""
        return len(self.classes)

    def stage_inputs(self, stage: int) -> NDArray[np.intp]:
        """Columns that the stage at index `stage` reads, in its order."""
        return self._indices(self.stages[stage].inputs)

    def cloud_inputs(self) -> NDArray[np.intp]:
        """Columns that the high-cost model reads, in its order; none without one."""
        return self._indices(() if self.cloud is None else self.cloud.inputs)

    def request_inputs(self) -> NDArray[np.intp]:
        """Columns that a request carries, in its order.

        The high-cost model's, in its order; if stages are placed beyond the device, the union
        with theirs, in the order of the columns. Those of a raw window, where it carries that.
        """
        if self.cloud is not None and self.cloud.carries is not None and self.signal is not None:
            return self._indices(self.signal.window_names)
        beyond = [s for s, tier in enumerate(self.tiers) if tier != "device"]
        if not beyond:
            return self.cloud_inputs()
        parts = [self.cloud_inputs(), *(self.stage_inputs(s) for s in beyond)]
        return np.array(sorted(set(np.concatenate(parts).tolist())), np.intp)

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
        """Prices of an offload beside its features."""
        return self.prices

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
        asked = self.cloud_inputs() if self.cloud.carries is None else self.request_inputs()
        return cascade_costs(costs, acquired, costs.mask(asked), self.prices, self.tiers)

    @property
    def last_exit(self) -> int:
        """The last exit that an instance may take; the number of stages: the high-cost model."""
        last = len(self.stages) - (self.cloud is None)
        if self.max_instance_cost is None:
            return last
        return min(last, last_exit_within(self.exit_costs(), self.max_instance_cost))

    def acquired(self, stage: int, columns: Mask | None = None) -> Mask:
        """Features that stage `stage` acquires, bool (n_features,): all its inputs.

        With `columns`, (n, n_inputs), those of its inputs that each instance acquires: (n,
        n_features).
        """
        inputs = self.stage_inputs(stage)
        shape = (len(self.features),) if columns is None else (len(columns), len(self.features))
        acquired = np.zeros(shape, np.bool_)
        acquired[..., inputs] = True if columns is None else columns
        return acquired

    def with_active(self, point: int) -> Manifest:
        """Get the same manifest at operating point `point`; ManifestError if there is none."""
        if not 0 <= point < len(self.operating_points):
            raise ManifestError(
                "active", f"must be 0 to {len(self.operating_points) - 1}, not {point}"
            )
        return replace(self, active=point)

    def gate_limits(self, gate: int) -> tuple[float | None, float | None] | None:
        """Get between which thresholds of stage `gate` the bounds on classes hold.

        None without bounds. Where it is not known, the threshold may not move at all.
        """
        if self.min_recall is None and self.min_precision is None:
            return None
        point = self.active_point
        packed = point.thresholds[gate]
        return (packed, packed) if point.gate_range is None else point.gate_range

    def keeps_bounds(self, point: int) -> bool:
        """Whether operating point `point` kept the bounds on classes on validation data."""
        spec = self.operating_points[point]
        pairs = ((self.min_recall, spec.recall), (self.min_precision, spec.precision))
        return all(
            least is None
            or ((shares is not None and (share := shares[c]) is not None) and share >= least)
            for bounds, shares in pairs
            for c, least in enumerate(bounds or ())
        )

    def with_bounds(self, min_recall: ByClass, min_precision: ByClass) -> Manifest:
        """Get the same manifest under other bounds on classes, `min_recall` and `min_precision`.

        What is known of the gate's threshold is about the bounds that were: it is left out.
        """
        bounds = [
            share if any(s is not None for s in share) else None
            for share in (min_recall, min_precision)
        ]
        if bounds == [self.min_recall, self.min_precision]:
            return self
        points = tuple(replace(p, gate_range=None) for p in self.operating_points)
        return replace(self, min_recall=bounds[0], min_precision=bounds[1], operating_points=points)

    def _indices(self, names: Sequence[str]) -> NDArray[np.intp]:
        return np.array([self._columns[n] for n in names], np.intp)

    # -- JSON ------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Write the manifest as JSON text; the same manifest gives the same bytes."""
        document = self.to_document()
        return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    def to_document(self) -> dict[str, Any]:
        """Make the JSON document: plain lists, objects, texts and numbers."""
        listed = replace(
            self,
            features=tuple(self._listed_features()),
            every_stage=tuple(replace(s, inputs=self._listed(s.inputs)) for s in self.every_stage),
            cloud=self.cloud and replace(self.cloud, inputs=self._listed(self.cloud.inputs)),
            files=dict(sorted(self.files.items())),
        )
        document: dict[str, Any] = write_record(listed)
        if self.encoder is not None:
            document["encoder"] = write_record(self.encoder)
        if self.signal is not None:
            document["signal"] = write_record(write_signal(self.signal))
        return document

    def _listed_features(self) -> Sequence[FeatureSpec]:
        """Features as they are listed: one stands for the values of an array of one price."""
        found = list(self.features)
        for array, names in self._arrays.items():
            rest, values = found[: -len(names)], found[-len(names) :]
            same = {(f.own, f.group) for f in values}
            if tuple(f.name for f in values) == names and len(same) == 1:
                found = [*rest, replace(values[0], name=array)]
        return found

    def _listed(self, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """Names of inputs as they are listed: one stands for all values of an array."""
        return next(((array,) for array, names in self._arrays.items() if inputs == names), inputs)

    @property
    def _arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of an instance or a window, by the name that may stand for them."""
        found = {} if self.instance is None else {INSTANCE: tuple(self.instance.names)}
        window = () if self.signal is None else self.signal.window_names
        return found | ({WINDOW: window} if window else {})
