"""Build the manifest of a fitted system."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec
from sklearn.base import is_regressor

from gatewise.columns.encoders import RowEncoder
from gatewise.decision import ALWAYS_STOP
from gatewise.documents import DocumentError, Text, convert
from gatewise.errors import InputError
from gatewise.models.graph_model import GraphModel
from gatewise.models.instances import InstanceSpec
from gatewise.models.stage import Stage
from gatewise.operating_point import ByClass, OperatingPoint
from gatewise_export.bundle.flat_models import canonical_model, model_kind, write_model
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_reader import largest_request
from gatewise_export.bundle.manifest_records import (
    CloudSpec,
    FeatureSpec,
    FileSpec,
    GroupSpec,
    MissingSpec,
    PriceSpec,
    StageKind,
    StageSpec,
    Task,
)
from gatewise_export.onnx_writer import write_graph
from gatewise_export.packing.converters import CloudFile
from gatewise_signals.signal_input import SignalInput

if TYPE_CHECKING:
    from gatewise_training.cascades.base import BudgetedClassifier

#: File that names the backend of an opaque high-cost model, instead of its graph.
BACKEND = "backend.json"
#: Largest number of classes for which operating points have figures by class. A manifest with
#: thousands of points and classes would be too large to read.
MAX_LISTED_CLASSES = 64


@dataclass(frozen=True, eq=False)
class StageFiles:
    """A stage and its files.

    `arrays` and `graph` are the names of the files, or None, and `contents` are the files by name.
    """

    stage: Stage
    kind: StageKind
    arrays: str | None
    graph: str | None
    contents: dict[str, bytes]

    @classmethod
    def of_stage(cls, stage: Stage, stage_index: int) -> Self:
        """Write a stage's flat arrays and their graph, or use its given graph."""
        arrays_file = f"stage_{stage_index}.npz"
        graph_file = f"stage_{stage_index}.onnx"
        if isinstance(stage.model, GraphModel):
            return cls(stage, "graph", None, graph_file, {graph_file: stage.model.content})
        model = canonical_model(stage.model)
        kind = model_kind(model, is_lazy=stage.acquisition == "node")
        contents = {arrays_file: write_model(model)}
        if kind == "lazy":
            return cls(stage, kind, arrays_file, None, contents)
        return cls(
            stage, kind, arrays_file, graph_file, contents | {graph_file: write_graph(model)}
        )


def manifest_of_system(
    system: BudgetedClassifier,
    stages: Sequence[StageFiles],
    cloud: CloudFile | None,
    files: Mapping[str, bytes],
    *,
    name: str,
    version: str,
    created: datetime,
    encoder: RowEncoder | None = None,
    signal: SignalInput | None = None,
) -> Manifest:
    """Build the manifest of a system from its files."""
    # collect names, points and stage numbers
    feature_names = system.feature_names_
    costs = system.feature_costs_
    points = system.operating_points_
    frontier = system.frontier_
    prices = system.cloud_prices_
    high_cost_model = system.high_cost_model_
    index_of_stage = {stage_files.stage: index for index, stage_files in enumerate(stages)}
    stage_specs = tuple(_stage_spec(stage_files, feature_names) for stage_files in stages)
    manifest = Manifest(
        schema_version=2,
        name=name,
        version=version,
        created=created.isoformat(timespec="seconds"),
        min_runtime_version="0.1.0",
        task=_task_of(system),
        instance=_instance_spec(system),
        classes=tuple(system.classes_.tolist()) if hasattr(system, "classes_") else (),
        link=stage_specs[-1].link,
        features=tuple(
            FeatureSpec(feature_name, float(price), group)
            for feature_name, price, group in zip(
                feature_names, costs.own, costs.group_of_feature, strict=True
            )
        ),
        groups=tuple(
            GroupSpec(group, float(price), tuple(costs.prerequisites.get(group, ())))
            for group, price in zip(costs.group_names, costs.shared, strict=True)
        ),
        prices=PriceSpec(float(prices.request), float(prices.byte), float(prices.evaluation)),
        missing=MissingSpec(system.missing_["stages"], system.missing_["cloud"]),
        every_stage=stage_specs,
        chains=tuple(
            tuple(index_of_stage[stage] for stage in chain) for chain in chains_of(system)
        ),
        cloud=_cloud_spec(system, cloud),
        largest_request=0,
        operating_points=tuple(
            _round_point(point, has_cloud=high_cost_model is not None) for point in points
        ),
        active=points.index(system.operating_point_),
        files={
            file_name: FileSpec(hashlib.sha256(content).hexdigest(), len(content))
            for file_name, content in sorted(files.items())
        },
        encoder=encoder,
        signal=signal,
        reference_accuracy=frontier.reference_accuracy,
        reference_weighted_accuracy=frontier.reference_weighted_accuracy,
        reference_recall=_round_shares(frontier.reference_recall),
        class_rows=tuple(frontier.class_rows) or None,
        max_instance_cost=getattr(system, "max_instance_cost_", None),
        **_class_bounds(system),
    )
    # the size of a request follows from the manifest
    return msgspec.structs.replace(manifest, largest_request=largest_request(manifest))


def chains_of(system: BudgetedClassifier) -> Sequence[Sequence[Any]]:
    """List the stages of each candidate cascade of a system."""
    chains: Sequence[Sequence[Any]] = getattr(system, "chains_", (system.stages_,))
    return chains


def check_column_names(names: Sequence[str]) -> None:
    """Refuse column names that a manifest does not allow, such as names with line breaks."""
    problems = []
    for name in names:
        if name != name.strip():
            # readers of CSV files strip cells, and would not find the column
            problems.append(f"{name[:64]!r} begins or ends with a space")
            continue
        try:
            convert(name, Text)
        except DocumentError as error:
            problems.append(f"{name[:64]!r} {error.problem}")
    if problems:
        raise InputError(f"rename columns that a bundle cannot hold: {'; '.join(problems)}")


def _stage_spec(stage_files: StageFiles, names: Sequence[str]) -> StageSpec:
    stage = stage_files.stage
    return StageSpec(
        kind=stage_files.kind,
        inputs=tuple(names[column] for column in stage.features),
        bytes=sum(len(content) for content in stage_files.contents.values()),
        link=stage.link,
        score=stage.score,
        outputs=stage.model.n_outputs,
        arrays=stage_files.arrays,
        graph=stage_files.graph,
    )


def _cloud_spec(system: BudgetedClassifier, cloud_file: CloudFile | None) -> CloudSpec | None:
    """Describe the high-cost model; None without one."""
    high_cost_model = system.high_cost_model_
    if high_cost_model is None:
        return None
    inputs = tuple(system.feature_names_[column] for column in high_cost_model.features)
    if cloud_file is None:
        return CloudSpec(BACKEND, inputs, "classifier", "identity", high_cost_model.backend)
    return CloudSpec(
        cloud_file.name,
        inputs,
        cloud_file.kind,
        cloud_file.link,
        probed=cloud_file.probed,
        graph_problem=cloud_file.graph_problem,
    )


def _round_point(point: OperatingPoint, *, has_cloud: bool) -> OperatingPoint:
    """Round the figures of a point, and omit figures by class if there are many classes."""
    changes: dict[str, Any] = {
        name: None if getattr(point, name) is None else round(float(getattr(point, name)), 6)
        for name in ("balanced_accuracy", "log_loss", "brier_score")
    }
    changes |= {name: _round_shares(getattr(point, name)) for name in ("recall", "precision")}
    if not has_cloud:  # the last stage answers with any score
        changes |= {"thresholds": (*point.thresholds[:-1], ALWAYS_STOP), "agreement": None}
    return msgspec.structs.replace(point, **changes)


def _round_shares(shares: ByClass | None) -> ByClass | None:
    if shares is None or len(shares) > MAX_LISTED_CLASSES:
        return None
    return tuple(None if share is None else round(float(share), 6) for share in shares)


def _class_bounds(system: BudgetedClassifier) -> dict[str, Any]:
    """Bounds by class; a bound on the loss of recall becomes a bound on the recall."""
    bounds = getattr(system, "class_bounds_", None)
    if not bounds:
        return {}
    recalls = bounds.as_recalls(system.frontier_.reference_recall)
    # a margin covers the rounding of the difference and of the points' recalls
    if bounds.max_loss:
        lower_bounds = tuple(recall and max(recall - 1e-6, 1e-6) for recall in recalls.min_recall)
        recalls = replace(recalls, min_recall=lower_bounds)
    return {
        name: getattr(recalls, name)
        for name in ("min_recall", "min_precision")
        if any(share is not None for share in getattr(recalls, name))
    }


def _instance_spec(system: BudgetedClassifier) -> InstanceSpec | None:
    """Shape and type of array instances; None for rows of float32 features."""
    spec: InstanceSpec | None = getattr(system, "instance_", None)
    if spec is None or (len(spec.shape) == 1 and spec.dtype == "float32"):
        return None
    return spec


def _task_of(system: BudgetedClassifier) -> Task:
    if hasattr(system, "classes_"):
        return "classify"
    return "regress" if is_regressor(system) else "rank"
