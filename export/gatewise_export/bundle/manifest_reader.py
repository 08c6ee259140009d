"""Reader of ``manifest.json`` that checks every type, range, name and reference.

What each part may hold by itself, its types say (:mod:`.specs`); then follow references from one
part to another.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.decision import reachable_exits
from gatewise.documents import DocumentError
from gatewise.documents.json_reader import JsonField
from gatewise.errors import ManifestError
from gatewise_export.bundle.manifest import Manifest, request_dtype
from gatewise_export.bundle.manifest_parts import specs
from gatewise_export.bundle.manifest_parts.features import (
    check_groups,
    expanded,
    read_classes,
    read_instance,
)
from gatewise_export.bundle.manifest_parts.files import read_files
from gatewise_export.bundle.manifest_parts.stages import (
    check_by_class,
    check_point,
    check_tiers,
    check_values,
    check_window,
    checked_stage,
    least_merit,
    read_chains,
    with_inputs,
)
from gatewise_signals.document import SignalRecord, read_signal

MOST_BLOCK_MODELS = 64
MOST_BYTES_OF_ALL = 2 << 30
"""All files of a bundle together (2 GiB): each is read through on opening."""

_APART = (
    "classes", "instance", "chains", "active", "files", "encoder", "signal"
)  # fmt: skip
"""Entries that are read with others in view, or have forms of their own."""


def read_manifest(text: str | bytes) -> Manifest:
    """Read and check the text of a manifest."""
    document = JsonField.parse(text)
    if document["schema_version"].value != specs.SCHEMA_VERSION:
        document["schema_version"].fail(
            f"must be {specs.SCHEMA_VERSION}; another one takes another version of Gatewise"
        )
    values = document.values(Manifest, _APART)
    task = values["task"]
    classes = read_classes(document["classes"], task)
    instance = read_instance(document.get("instance"))
    check_groups(document, values)
    signal_field, listed = document.get("signal"), values["features"]
    signal = None
    if signal_field is not None:
        names_listed = tuple(f.name for f in listed)
        try:
            signal = read_signal(signal_field.convert(SignalRecord), names_listed)
        except DocumentError as error:
            raise ManifestError(f"signal.{error.field}", error.why) from None
    values["features"] = expanded(document["features"], listed, instance, signal)
    names = dict.fromkeys(f.name for f in values["features"])
    files = _listed_files(document["files"])
    stage_fields = document["stages"].items(1, specs.MOST_STAGES)
    stages = values["every_stage"] = tuple(
        checked_stage(f, spec, names, files, len(classes))
        for f, spec in zip(stage_fields, values["every_stage"], strict=True)
    )
    cloud = values["cloud"]
    if cloud is not None:
        cloud = values["cloud"] = with_inputs(document["cloud"], cloud, names, files)
    chains = read_chains(document.get("chains"), len(stages))
    check_tiers(document["stages"], stages, chains, cloud is not None)
    check_values(document, task, stages, chains, cloud is not None)
    check_window(document, signal, stages, cloud)
    points = values["operating_points"]
    point_fields = document["operating_points"].items(1, specs.MOST_POINTS)
    for field, point in zip(point_fields, points, strict=True):
        check_point(field, point, chains, cloud is not None, task, len(classes))
    if values["link"] != stages[-1].link:
        document["link"].fail(f"is {values['link']!r}, the last stage's is {stages[-1].link!r}")
    used = [s.file for s in stages] + [specs.SAMPLE] + ([cloud.file] if cloud is not None else [])
    used += [] if signal is None else list(signal.models)
    document["files"].unique(used, "two models share the file")
    if set(files) != set(used):
        strange = sorted(set(files) ^ set(used))[0]
        document["files"].fail(f"and what the manifest uses differ in {strange!r}")
    for key in ("reference_recall", "class_rows", "min_recall", "min_precision"):
        check_by_class(document.get(key), len(classes))
    if "reference_accuracy" in values:
        document["reference_accuracy"].number(least_merit(task), 1.0)
    encoder = document.get("encoder")
    values["prices"] = structs.replace(
        values["prices"], item_size=request_dtype(instance, signal).itemsize
    )
    manifest = Manifest(
        **values,
        classes=classes,
        instance=instance,
        chains=chains,
        active=document["active"].integer(0, len(points) - 1),
        files=files,
        encoder=None if encoder is None else _read_encoder(encoder, tuple(names)),
        signal=signal,
    )
    check_highest_costs(document["operating_points"], manifest)
    return manifest


def _read_encoder(field: JsonField, feature_names: tuple[str, ...]) -> RowEncoder:
    encoder = field.convert(RowEncoder)
    if encoder.feature_names != feature_names:
        field["columns"].fail("their features are not those of the manifest, in its order")
    return encoder


def check_highest_costs(points: JsonField, manifest: Manifest) -> None:
    """Refuse operating points at which an instance may cost more than `max_instance_cost`."""
    most = manifest.max_instance_cost
    if most is None:
        return
    limits: dict[int, NDArray[np.float64]] = {}
    fields = points.items(1, specs.MOST_POINTS)
    for i, (field, point) in enumerate(zip(fields, manifest.operating_points, strict=True)):
        if point.chain not in limits:
            limits[point.chain] = manifest.with_active(i).exit_costs()
        costs = limits[point.chain]
        highest = max(costs[e] for e in reachable_exits(point.thresholds))
        if highest > most:
            field.fail(f"may cost {highest:g} an instance, more than max_instance_cost {most:g}")


def _listed_files(field: JsonField) -> dict[str, specs.FileSpec]:
    files = read_files(
        field, most=specs.MOST_STAGES + MOST_BLOCK_MODELS + 2, most_bytes=specs.MOST_BYTES
    )
    if sum(f.size for f in files.values()) > MOST_BYTES_OF_ALL:
        field.fail(f"of more than {MOST_BYTES_OF_ALL} B together")
    if specs.MANIFEST in files:
        field.fail(f"lists {specs.MANIFEST!r} itself")
    return files
