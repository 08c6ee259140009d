"""Read ``manifest.json``: check its types, and then the rules between its fields.

Every error is a ManifestError that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NoReturn

import msgspec
import numpy as np

from gatewise.decision import ALWAYS_STOP, STOP_RULES, reachable_exits
from gatewise.documents import DocumentError, decode_json
from gatewise.models.instances import MAX_VALUES, InstanceSpec
from gatewise.prices import request_bytes
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest import Manifest, ModelSpec
from gatewise_export.bundle.manifest_records import (
    INSTANCE,
    MANIFEST,
    RANGES,
    SAMPLE,
    FeatureSpec,
    ManifestDocument,
    StageSpec,
)
from gatewise_export.bundle.signing import SIGNATURE
from gatewise_export.bundle.topic_levels import TOPIC_LEVEL_RULE, is_topic_level
from gatewise_signals.document import make_signal_input
from gatewise_signals.signal_input import WINDOW, SignalInput

#: Largest number of files: two per stage, and one per network of a block.
MAX_FILES: Final = 4096
#: Largest total size of the files in bytes (2 GiB), because opening reads all of them.
MAX_TOTAL_BYTES: Final = 2 << 30


def read_manifest(text: bytes) -> Manifest:
    """Read and check the text of a manifest."""
    # check types and bounds of single values
    try:
        document = decode_json(text, ManifestDocument, MANIFEST)
    except DocumentError as error:
        raise ManifestError(error.field or "the document", error.problem) from None
    field_values = {name: getattr(document, name) for name in document.__struct_fields__}
    # check names, classes, groups and the signal
    for field in ("name", "version"):
        if not is_topic_level(field_values[field]):
            _fail(field, f"{field_values[field]!r} {TOPIC_LEVEL_RULE}")
    _check_classes(document)
    _check_created(document.created)
    _check_groups(document)
    signal = None
    if document.signal is not None:
        feature_names = tuple(feature.name for feature in document.features)
        try:
            signal = make_signal_input(document.signal, feature_names)
        except DocumentError as error:
            raise ManifestError(f"signal.{error.field}", error.problem) from None
    # expand arrays into features and inputs
    features = _all_features(document, signal)
    feature_names = tuple([feature.name for feature in features])
    if document.encoder is not None and document.encoder.feature_names != feature_names:
        _fail("encoder.columns", "must give the manifest's features in the same order")
    field_values |= {
        "features": features,
        "every_stage": tuple(
            _with_inputs(f"stages[{index}]", stage, feature_names)
            for index, stage in enumerate(document.every_stage)
        ),
        "cloud": document.cloud and _with_inputs("cloud", document.cloud, feature_names),
        "signal": signal,
    }
    manifest = Manifest(**field_values)
    # check references between stages, files, chains and points
    for index, stage in enumerate(manifest.every_stage):
        _check_stage_files(f"stages[{index}]", stage)
    _check_files(manifest)
    _check_stages(manifest)
    _check_chains(manifest)
    _check_window(manifest)
    _check_request(manifest)
    _check_points(manifest)
    _check_figures(manifest)
    _check_highest_costs(manifest)
    return manifest


def _fail(field: str, problem: str) -> NoReturn:
    raise ManifestError(field, problem)


def _check_unique(
    field: str, values: Sequence[Any], noun: str, problem: str = "is listed twice"
) -> None:
    """Refuse values of which one occurs twice."""
    if len(set(values)) == len(values):
        return
    seen_values: set[Any] = set()
    for value in values:
        if value in seen_values:
            _fail(field, f"{noun} {value!r} {problem}")
        seen_values.add(value)


# -- instances and answers ---------------------------------------------------------------------


def _check_classes(document: ManifestDocument) -> None:
    """Check that all labels have one type, or that the list is empty if answers are values."""
    classes = document.classes
    if document.task != "classify":
        if classes:
            _fail("classes", f"must be empty for task {document.task!r}")
        return
    if len(classes) < 2:
        _fail("classes", f"must have at least 2 entries, not {len(classes)}")
    for index, label in enumerate(classes):
        if type(label) is not type(classes[0]):
            _fail(f"classes[{index}]", "has a different type than the first class")
    _check_unique("classes", classes, "class")


def _check_created(created_text: str) -> None:
    try:
        offset = datetime.fromisoformat(created_text).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        _fail("created", f"{created_text!r} is not an ISO 8601 time in UTC")


def _check_groups(document: ManifestDocument) -> None:
    """Check that every group is listed and used, and that requirements have no cycle."""
    groups = document.groups
    _check_unique("groups", [group.name for group in groups], "group")
    group_names = {group.name for group in groups}
    for index, feature in enumerate(document.features):
        if feature.group is not None and feature.group not in group_names:
            _fail(f"features[{index}].group", f"{feature.group!r} is not a listed group")
    _check_unique("features", [feature.name for feature in document.features], "feature")
    required_groups = {name for group in groups for name in group.requires}
    if required_groups - group_names:
        _fail("groups", f"{min(required_groups - group_names)!r} is required, but not listed")
    empty_groups = group_names - {feature.group for feature in document.features} - required_groups
    if empty_groups:
        _fail("groups", f"group {min(empty_groups)!r} has no features")
    try:
        TopologicalSorter({group.name: group.requires for group in groups}).prepare()
    except CycleError as error:
        _fail("groups", f"require each other: {', '.join(error.args[1])}")


def _all_features(
    document: ManifestDocument, signal: SignalInput | None
) -> tuple[FeatureSpec, ...]:
    """List the features, and replace an array by its values."""
    features: list[FeatureSpec] = list(document.features)
    instance: InstanceSpec | None = document.instance
    value_names: Iterable[str] = () if signal is None else signal.window_names
    if instance is not None:
        if instance.n_values > MAX_VALUES:
            _fail(
                "instance.shape",
                f"holds {instance.n_values} values; at most {MAX_VALUES} are allowed",
            )
        if [feature.name for feature in features] == [INSTANCE]:
            value_names = instance.names
    if value_names:
        array_feature = features.pop()
        features += [
            FeatureSpec(name, array_feature.own, array_feature.group) for name in value_names
        ]
    if instance is not None and len(features) != instance.n_values:
        _fail(
            "features",
            f"lists {len(features)} features, but an instance of shape {list(instance.shape)} has "
            f"{instance.n_values} values",
        )
    return tuple(features)


# -- models ------------------------------------------------------------------------------------


def _with_inputs(field: str, model: ModelSpec, names: tuple[str, ...]) -> ModelSpec:
    """Check the inputs of a model, and replace an array by its values."""
    feature_names = set(names)
    for array_name in (INSTANCE, WINDOW):
        if model.inputs == (array_name,) and array_name not in feature_names:
            value_names = tuple(name for name in names if name.startswith(f"{array_name}["))
            if value_names:
                return msgspec.structs.replace(model, inputs=value_names)
    for index, name in enumerate(model.inputs):
        if name not in feature_names:
            _fail(f"{field}.inputs[{index}]", f"{name!r} is not a feature")
    _check_unique(f"{field}.inputs", model.inputs, "feature")
    return model


def _check_files(manifest: Manifest) -> None:
    """Check that `files` lists exactly the files that the manifest uses, each once."""
    used_files = [name for stage in manifest.every_stage for name in stage.files]
    used_files += [SAMPLE] + ([] if manifest.cloud is None else [manifest.cloud.file])
    used_files += [RANGES] if RANGES in manifest.files else []
    used_files += [] if manifest.signal is None else list(manifest.signal.models)
    if len(used_files) > MAX_FILES:
        _fail("files", f"has {len(used_files)} entries, more than {MAX_FILES}")
    # the manifest or the signature would overwrite a model of the same name
    for name in (MANIFEST, SIGNATURE):
        if name in used_files:
            _fail("files", f"{name!r} cannot be the name of a model's file")
    _check_unique("files", used_files, "file", "is used by two models")
    mismatched_files = set(manifest.files) ^ set(used_files)
    if mismatched_files:
        problem = (
            "is not used" if min(mismatched_files) in manifest.files else "is used, but not listed"
        )
        _fail("files", f"{min(mismatched_files)!r} {problem}")
    if manifest.total_bytes > MAX_TOTAL_BYTES:
        _fail("files", f"have more than {MAX_TOTAL_BYTES} B together")


def _check_stages(manifest: Manifest) -> None:
    """Check that each stage's size fits its files, and its outputs fit its link."""
    for index, stage in enumerate(manifest.every_stage):
        field = f"stages[{index}]"
        size_bytes = sum(manifest.files[name].size for name in stage.files)
        if stage.bytes != size_bytes:
            _fail(f"{field}.bytes", f"is {stage.bytes}, but its files have {size_bytes} B")
        n_margins = stage.outputs - STOP_RULES[stage.score].n_score_outputs
        expected_margins = (
            1 if stage.link == "sigmoid" or not manifest.classes else manifest.n_classes
        )
        if n_margins != expected_margins or (stage.link == "sigmoid" and manifest.n_classes != 2):
            _fail(
                f"{field}.outputs",
                f"gives {n_margins} margins, which do not fit link {stage.link!r} and "
                f"{manifest.n_classes} classes",
            )
        if manifest.answers_values and (stage.link, stage.score) != ("identity", "margin"):
            _fail(field, f"must have link 'identity' and score 'margin' for task {manifest.task!r}")
    last_link = manifest.every_stage[-1].link
    if manifest.link != last_link:
        _fail("link", f"is {manifest.link!r}, but the last stage's link is {last_link!r}")


def _check_stage_files(field: str, stage: StageSpec) -> None:
    for key, file_name, kind_without in (
        ("arrays", stage.arrays, "graph"),
        ("graph", stage.graph, "lazy"),
    ):
        if (file_name is None) != (stage.kind == kind_without):
            rule = "must be null" if stage.kind == kind_without else "must name a file"
            _fail(f"{field}.{key}", f"{rule} for kind {stage.kind!r}")


def _check_chains(manifest: Manifest) -> None:
    """Check that chains use valid stages and every stage, and that the active point exists."""
    n_stages = len(manifest.every_stage)
    for index, chain in enumerate(manifest.chains):
        field = f"chains[{index}]"
        if not chain or max(chain) >= n_stages:
            _fail(field, f"must hold stage numbers from 0 to {n_stages - 1}")
        _check_unique(field, chain, "stage")
        if manifest.answers_values and len(chain) != 1:
            _fail(field, f"must hold one stage for task {manifest.task!r}")
    unused_stages = set(range(n_stages)).difference(*manifest.chains)
    if unused_stages:
        _fail("chains", f"stage {min(unused_stages)} is in no chain")
    if manifest.answers_values and manifest.cloud is not None:
        _fail("cloud", f"must be null, because task {manifest.task!r} cannot offload")
    if manifest.active >= len(manifest.operating_points):
        _fail("active", f"must be 0 to {len(manifest.operating_points) - 1}, not {manifest.active}")


def _check_window(manifest: Manifest) -> None:
    """Check that only the high-cost model reads the values of a raw window."""
    signal = manifest.signal
    if signal is None or not signal.has_window_values:
        return
    window_names = set(signal.window_names)
    for index, stage in enumerate(manifest.every_stage):
        if not window_names.isdisjoint(stage.inputs):
            _fail(f"stages[{index}].inputs", "holds window values, which only the cloud may read")
    if manifest.cloud is None or manifest.cloud.inputs != signal.window_names:
        _fail("features", f"lists {WINDOW!r}, which the cloud's model must read, and nothing else")


def _check_request(manifest: Manifest) -> None:
    """Check the stated size of a request with one instance."""
    request_size = largest_request(manifest)
    if manifest.largest_request != request_size:
        _fail(
            "largest_request", f"is {manifest.largest_request}, but a request has {request_size} B"
        )


def largest_request(manifest: Manifest) -> int:
    """Bytes of a request with one instance; 0 without a cloud."""
    if manifest.cloud is None:
        return 0
    n_values = len(manifest.cloud_inputs())
    return request_bytes(n_values, item_size=manifest.request_dtype.itemsize)


# -- operating points --------------------------------------------------------------------------


def _check_points(manifest: Manifest) -> None:
    """Check the chain, thresholds and figures of each operating point."""
    n_classes = manifest.n_classes
    # avoid calls, because a bundle may have thousands of points
    for index, point in enumerate(manifest.operating_points):
        field = f"operating_points[{index}]"
        if point.chain >= len(manifest.chains):
            _fail(f"{field}.chain", f"must be 0 to {len(manifest.chains) - 1}, not {point.chain}")
        thresholds = point.thresholds
        n_stages = len(manifest.chains[point.chain])
        if len(thresholds) != n_stages:
            _fail(f"{field}.thresholds", f"must have {n_stages} entries, not {len(thresholds)}")
        if manifest.cloud is None and thresholds[-1] != ALWAYS_STOP:
            _fail(
                f"{field}.thresholds",
                f"must end with {ALWAYS_STOP!r} (always stop), because the bundle has no cloud",
            )
        if not 0.0 <= point.accuracy <= 1.0:
            _check_accuracy(f"{field}.accuracy", point.accuracy, manifest)
        if point.accuracy_error > 1.0 and manifest.task != "regress":
            _fail(f"{field}.accuracy_error", f"must be 0 to 1, not {point.accuracy_error:g}")
        for key, shares in (("recall", point.recall), ("precision", point.precision)):
            if shares is not None and len(shares) != n_classes:
                _fail(f"{field}.{key}", f"must have {n_classes} entries, not {len(shares)}")
        if point.interval is not None and point.interval[0] > point.interval[1]:
            low, high = point.interval
            _fail(f"{field}.interval", f"has a lower end {low} above its upper end {high}")


def _check_figures(manifest: Manifest) -> None:
    """Check the figures of the high-cost model and of the classes."""
    n_classes = manifest.n_classes
    for key in ("reference_recall", "class_rows", "min_recall", "min_precision"):
        values = getattr(manifest, key)
        if values is not None and len(values) != n_classes:
            _fail(key, f"must have {n_classes} entries, not {len(values)}")
    if manifest.reference_accuracy is not None:
        _check_accuracy("reference_accuracy", manifest.reference_accuracy, manifest)


def _check_accuracy(field: str, value: float, manifest: Manifest) -> None:
    """Check an accuracy or average precision; R² has no lower bound."""
    if value > 1.0 or (value < 0.0 and manifest.task != "regress"):
        _fail(field, f"must be 0 to 1, not {value:g}")


def _check_highest_costs(manifest: Manifest) -> None:
    """Refuse operating points at which an instance may cost more than `max_instance_cost`."""
    max_cost = manifest.max_instance_cost
    if max_cost is None:
        return
    exit_costs_of_chain: dict[int, Any] = {}
    for index, point in enumerate(manifest.operating_points):
        if point.chain not in exit_costs_of_chain:
            exit_costs_of_chain[point.chain] = manifest.with_active(index).exit_costs()
        highest_cost = float(
            np.max(exit_costs_of_chain[point.chain][reachable_exits(point.thresholds)])
        )
        if highest_cost > max_cost:
            _fail(
                f"operating_points[{index}]",
                f"may cost {highest_cost:g} per instance, more than max_instance_cost {max_cost:g}",
            )
