"""The manifest of a fitted system."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sklearn.base import is_regressor

from gatewise.columns.encoders import RowEncoder
from gatewise.decision import ALWAYS_STOP
from gatewise.documents.json_reader import text_trouble
from gatewise.errors import InputError
from gatewise.models.graph_model import GraphModel
from gatewise.models.instances import InstanceSpec
from gatewise_export.bundle.manifest import (
    CloudSpec,
    FeatureSpec,
    FileSpec,
    GroupSpec,
    Manifest,
    OperatingPointSpec,
    StageSpec,
    Task,
)
from gatewise_export.packing.converters import CloudGraph
from gatewise_signals.signal_input import SignalInput

if TYPE_CHECKING:
    from gatewise.models.stage import Stage
    from gatewise.operating_point import OperatingPoint
    from gatewise_training.cascades.base import BudgetedClassifier

CLOUD = "cloud.onnx"
BACKEND = "backend.json"
"""In place of the graph of a high-cost model that stays opaque: what serves it."""
MOST_CLASSES_LISTED = 64
"""With more, operating points have no figures by class."""


def manifest_of_system(
    system: BudgetedClassifier,
    stages: Sequence[Stage],
    chains: Sequence[Sequence[int]],
    cloud: CloudGraph | None,
    files: dict[str, bytes],
    name: str,
    version: str,
    created: datetime,
    encoder: RowEncoder | None,
    signal: SignalInput | None,
) -> Manifest:
    """Make the manifest of a system from its files."""
    names, costs = system.feature_names_, system.feature_costs_
    groups = [None if g < 0 else costs.group_names[g] for g in costs.group]
    points, frontier = system.operating_points_, system.frontier_
    specs = tuple(
        StageSpec(
            file=stage_file(i, stage),
            kind="lazy" if stage.acquisition == "node" else "graph",
            inputs=tuple(names[k] for k in stage.features),
            bytes=len(files[stage_file(i, stage)]),
            link=stage.link,
            score=stage.score,
            outputs=stage.model.n_outputs,
            tier=stage.tier,
            origin="given" if isinstance(stage.model, GraphModel) else "gatewise",
        )
        for i, stage in enumerate(stages)
    )
    f0, cloud_spec = system.high_cost_model_, None
    if f0 is not None:
        asked = tuple(names[k] for k in f0.features)
        if cloud is None:
            cloud_spec = CloudSpec(BACKEND, asked, "classifier", "identity", f0.backend)
        else:
            cloud_spec = CloudSpec(CLOUD, asked, cloud.kind, cloud.link)
    return Manifest(
        name=name,
        version=version,
        created=created.isoformat(timespec="seconds"),
        task=_task(system),
        instance=_instance(system),
        classes=tuple(system.classes_.tolist()) if hasattr(system, "classes_") else (),
        link=specs[-1].link,
        features=tuple(
            FeatureSpec(n, float(own), g)
            for n, own, g in zip(names, costs.own, groups, strict=True)
        ),
        groups=tuple(
            GroupSpec(g, float(price), costs.prerequisites.get(g, ()))
            for g, price in zip(costs.group_names, costs.shared, strict=True)
        ),
        prices=system.cloud_prices_,
        missing=dict(system.missing_),
        every_stage=specs,
        chains=tuple(tuple(c) for c in chains),
        cloud=cloud_spec,
        operating_points=tuple(_point(p, cloud=f0 is not None) for p in points),
        active=points.index(system.operating_point_),
        files={
            n: FileSpec(hashlib.sha256(content).hexdigest(), len(content))
            for n, content in files.items()
        },
        encoder=encoder,
        signal=signal,
        reference_accuracy=frontier.reference_accuracy,
        reference_weighted_accuracy=frontier.reference_weighted_accuracy,
        reference_recall=_rounded(frontier.reference_recall),
        class_rows=frontier.class_rows or None,
        packed_as="c99" if points[0].bytes else None,
        max_instance_cost=getattr(system, "max_instance_cost_", None),
        **_bounds(system),
    )


def check_column_names(names: Sequence[str]) -> None:
    """Refuse names of columns that no manifest may hold, with what to do.

    Line breaks and no-break spaces among them, as spreadsheets write them.
    """
    troubles = {name: text_trouble(name) for name in names}
    found = [f"{name[:64]!r} {why}" for name, why in troubles.items() if why is not None]
    if found:
        raise InputError(f"no bundle can hold such names of columns, rename: {'; '.join(found)}")


def stage_file(number: int, stage: Stage) -> str:
    """Name the file of a stage's model."""
    return f"stage_{number}.npz" if stage.acquisition == "node" else f"stage_{number}.onnx"


def _point(point: OperatingPoint, *, cloud: bool) -> OperatingPointSpec:
    """Entry of a point; figures by class only where the manifest stays small."""
    names = {f.name for f in fields(OperatingPointSpec)} - {"expected_cost"}
    found = {name: getattr(point, name) for name in names}
    for name in ("balanced_accuracy", "log_loss", "brier_score"):
        found[name] = None if found[name] is None else round(found[name], 6)
    found |= {name: _rounded(found[name]) for name in ("recall", "precision")}
    if not cloud:  # the last stage's answer stands, whatever its score
        found |= {"thresholds": (*point.thresholds[:-1], ALWAYS_STOP), "agreement": None}
    if point.guarantee is not None:
        found["guarantee"] = dict(point.guarantee)
    return OperatingPointSpec(expected_cost=point.cost, **found | {"bytes": point.bytes or None})


def _rounded(shares: tuple[float | None, ...] | None) -> tuple[float | None, ...] | None:
    if shares is None or len(shares) > MOST_CLASSES_LISTED:
        return None
    return tuple(None if share is None else round(share, 6) for share in shares)


def _bounds(system: BudgetedClassifier) -> dict[str, Any]:
    """Bounds on classes, losses as the recalls that they leave; none of a regressor or ranker."""
    bounds = getattr(system, "class_bounds_", None)
    if not bounds:
        return {}
    kept = bounds.as_recalls(system.frontier_.reference_recall)
    if bounds.max_loss:  # a difference of floats; points' recalls are rounded, too
        kept = replace(kept, min_recall=tuple(r and max(r - 1e-6, 1e-6) for r in kept.min_recall))
    return {
        name: getattr(kept, name)
        for name in ("min_recall", "min_precision")
        if any(share is not None for share in getattr(kept, name))
    }


def _instance(system: BudgetedClassifier) -> InstanceSpec | None:
    """Shape and type of instances that are arrays; None for rows of float32 features."""
    spec: InstanceSpec | None = getattr(system, "instance_", None)
    if spec is None or (len(spec.shape) == 1 and spec.dtype == "float32"):
        return None
    return spec


def _task(system: BudgetedClassifier) -> Task:
    if hasattr(system, "classes_"):
        return "classify"
    return "regress" if is_regressor(system) else "rank"
