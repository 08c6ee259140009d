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
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import exit_costs, last_exit_within
from gatewise.columns.encoders import RowEncoder
from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.decision import Link
from gatewise.models.instances import InstanceSpec
from gatewise.tiers import PackedAs, Tier, cascade_costs
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_parts.specs import (
    CLASS_FIGURES,
    INSTANCE,
    MANIFEST,
    POINT_FIGURES,
    SAMPLE,
    SCHEMA_VERSION,
    ByClass,
    ClassLabel,
    CloudKind,
    CloudSpec,
    FeatureSpec,
    FileSpec,
    GroupSpec,
    Measured,
    Missing,
    OperatingPointSpec,
    Origin,
    StageKind,
    StageSpec,
    Task,
)
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.document import write_signal
from gatewise_signals.signal_input import WINDOW, SignalInput

__all__ = [
    "CLASS_FIGURES", "INSTANCE", "MANIFEST", "POINT_FIGURES", "SAMPLE", "SCHEMA_VERSION",
    "ByClass", "ClassLabel", "CloudKind", "CloudSpec", "FeatureSpec", "FileSpec", "GroupSpec",
    "Manifest", "Measured", "Missing", "OperatingPointSpec", "Origin", "StageKind", "StageSpec",
    "Task", "request_dtype",
]  # fmt: skip

Mask = NDArray[np.bool_]


def request_dtype(instance: InstanceSpec | None, signal: SignalInput | None) -> np.dtype[Any]:
    """Type of a request's values: that of arrays and of raw windows, else float32."""
    if instance is not None:
        return np.dtype(instance.dtype)
    return np.dtype(signal.dtype if signal is not None and signal.raw else "float32")


@dataclass(frozen=True)
class Manifest:
    """The manifest of a bundle.

    Attributes
    ----------
    name, version : str
        Of the bundle; topic levels, so without ``/ + #``, at most 64 bytes.
    created : str
        ISO 8601, UTC.
    classes : tuple
        The user's labels, all of one type; models speak of their indices. Empty unless the task
        is ``classify``.
    link : {"sigmoid", "softmax", "identity"}
        Of the last stage listed; each stage has its own.
    features : tuple of FeatureSpec
        Columns of an instance, in order.
    groups : tuple of GroupSpec
    prices : CloudPrices
    missing : dict
        Under ``stages`` and ``cloud``: whether NaN is a value, "allowed" or "refused".
    every_stage : tuple of StageSpec
        The stages of all chains.
    chains : tuple of tuple of int
        Indices into `every_stage`.
    cloud : CloudSpec or None
    operating_points : tuple of OperatingPointSpec
    active : int
        Index of the active operating point.
    files : dict of str to FileSpec
    reference_accuracy : float or None
        Of the high-cost model on validation data.
    reference_weighted_accuracy : float or None
    reference_recall : tuple of float or None, or None
        Of the same model, by class.
    class_rows : tuple of int, or None
        Validation rows of each class.
    min_recall, min_precision : tuple of float or None, or None
        Bounds by class that the active operating point keeps, and that a pacer may not break.
    packed_as : {"c99", "onnx"} or None
        What the operating points' `bytes` count: tables of C99, or files of stages.
    max_instance_cost : float or None
        The most that an instance may cost at any operating point, whatever its values: a device
        and what is behind it end its way before an exit that could cost more.
    task : {"classify", "regress", "rank"}
        What an answer is: a class, a measured value, or a document's score. Where it is a value,
        there is no cloud, each chain is one stage with one margin and link ``identity``, that
        margin is the answer, and `accuracy` of an operating point is the estimator's own score:
        R² of a regressor, Average Precision@5 of a ranker.
    encoder : RowEncoder or None
        What makes the features of an instance's raw columns; None: instances are features.
    signal : SignalInput or None
        Windows of a signal, and the blocks that compute the features; None: instances are features.
        If it is raw, the window's own values are the last features, and a request holds these.
    instance : InstanceSpec or None
        Shape and type of an instance that is an array; its values, in row-major order, are the
        features. None: a row of float32 features.
    min_runtime_version : str
        The oldest Gatewise that can read the bundle.
    schema_version : int
        Of the manifest's form.
    """

    name: str
    version: str
    created: str
    classes: tuple[ClassLabel, ...]
    link: Link
    features: tuple[FeatureSpec, ...]
    groups: tuple[GroupSpec, ...]
    prices: CloudPrices
    missing: dict[str, Missing]
    every_stage: tuple[StageSpec, ...]
    chains: tuple[tuple[int, ...], ...]
    cloud: CloudSpec | None
    operating_points: tuple[OperatingPointSpec, ...]
    active: int
    files: dict[str, FileSpec]
    reference_accuracy: float | None = None
    reference_weighted_accuracy: float | None = None
    reference_recall: ByClass | None = None
    class_rows: tuple[int, ...] | None = None
    min_recall: ByClass | None = None
    min_precision: ByClass | None = None
    packed_as: PackedAs | None = None
    max_instance_cost: float | None = None
    min_runtime_version: str = "0.1.0"
    task: Task = "classify"
    instance: InstanceSpec | None = None
    schema_version: int = SCHEMA_VERSION
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
        further = {} if self.encoder is None else {"encoder": self.encoder.to_document()}
        if self.signal is not None:
            further["signal"] = write_signal(self.signal)
        return {
            "schema_version": self.schema_version,
            "name": self.name,
            "version": self.version,
            "created": self.created,
            "min_runtime_version": self.min_runtime_version,
            "task": self.task,
            "classes": list(self.classes),
            "link": self.link,
            **({} if self.instance is None else {"instance": self.instance.to_document()}),
            "features": [asdict(f) for f in self._listed_features()],
            "groups": [_without(asdict(g), requires=()) for g in self.groups],
            "prices": {k: v for k, v in asdict(self.prices).items() if k != "item_size"},
            "missing": dict(self.missing),
            "stages": [
                _without(asdict(s), origin="gatewise") | {"inputs": self._listed(s.inputs)}
                for s in self.every_stage
            ],
            "chains": [list(c) for c in self.chains],
            "cloud": None
            if self.cloud is None
            else _without(asdict(self.cloud), backend=None, carries=None)
            | {"inputs": self._listed(self.cloud.inputs)},
            "operating_points": [
                _known(_without(asdict(p), measured="accuracy"), POINT_FIGURES)
                for p in self.operating_points
            ],
            "active": self.active,
            "reference_accuracy": self.reference_accuracy,
            **_known({key: getattr(self, key) for key in CLASS_FIGURES}, CLASS_FIGURES),
            "files": {name: asdict(f) for name, f in sorted(self.files.items())},
        } | further

    def _listed_features(self) -> Sequence[FeatureSpec]:
        """Features as they are listed: one stands for the values of an array of one price."""
        found = list(self.features)
        for array, names in self._arrays.items():
            rest, values = found[: -len(names)], found[-len(names) :]
            same = {(f.own, f.group) for f in values}
            if tuple(f.name for f in values) == names and len(same) == 1:
                found = [*rest, replace(values[0], name=array)]
        return found

    def _listed(self, inputs: tuple[str, ...]) -> Sequence[str]:
        """Names of inputs as they are listed: one stands for all values of an array."""
        return next(([array] for array, names in self._arrays.items() if inputs == names), inputs)

    @property
    def _arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of an instance or a window, by the name that may stand for them."""
        found = {} if self.instance is None else {INSTANCE: tuple(self.instance.names)}
        window = () if self.signal is None else self.signal.window_names
        return found | ({WINDOW: window} if window else {})


def _without(document: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Leave out entries that hold their default: older versions have no such keys."""
    return {k: v for k, v in document.items() if k not in defaults or v != defaults[k]}


def _known(entries: dict[str, Any], optional: Sequence[str]) -> dict[str, Any]:
    """Leave out optional entries that are None; tuples become lists."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in entries.items()
        if value is not None or key not in optional
    }
