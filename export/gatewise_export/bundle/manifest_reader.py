"""Reader of ``manifest.json`` that checks every type, range, name and reference."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.document import read_encoder
from gatewise.decision import reachable_exits
from gatewise.tiers import PackedAs
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.manifest import Manifest, request_dtype
from gatewise_export.bundle.manifest_parts.features import (
    expanded,
    read_classes,
    read_groups_and_features,
    read_instance,
    read_prices,
)
from gatewise_export.bundle.manifest_parts.files import read_files
from gatewise_export.bundle.manifest_parts.operating_points import (
    least_merit,
    read_by_class,
    read_class_rows,
    read_point,
)
from gatewise_export.bundle.manifest_parts.specs import (
    CLASS_FIGURES,
    LARGEST,
    MANIFEST,
    MOST_BYTES,
    MOST_STAGES,
    SAMPLE,
    SCHEMA_VERSION,
    FileSpec,
    Missing,
    Task,
)
from gatewise_export.bundle.manifest_parts.stages import (
    LINKS,
    check_tiers,
    check_values,
    check_window,
    read_chains,
    read_cloud,
    read_stage_spec,
)
from gatewise_signals.document import read_signal

TASKS: tuple[Task, ...] = get_args(Task)
MISSING: tuple[Missing, ...] = get_args(Missing)
PACKED_AS: tuple[PackedAs, ...] = get_args(PackedAs)
MOST_POINTS = 65536
MOST_BLOCK_MODELS = 64
MOST_BYTES_OF_ALL = 2 << 30
"""All files of a bundle together (2 GiB): each is read through on opening."""
VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)

NEEDED = (
    "schema_version", "name", "version", "created", "min_runtime_version", "task", "classes",
    "link", "features", "groups", "prices", "missing", "stages", "cloud", "operating_points",
    "active", "files",
)  # fmt: skip


def read_manifest(text: str | bytes) -> Manifest:
    """Read and check the text of a manifest."""
    document = JsonField.parse(text)
    document["schema_version"].integer(SCHEMA_VERSION, SCHEMA_VERSION)
    optional = ("chains", "reference_accuracy", "encoder", "signal", "instance", *CLASS_FIGURES)
    document.keys(NEEDED, optional)
    task = document["task"].choice(TASKS)
    classes = read_classes(document["classes"], task)
    instance = read_instance(document.get("instance"))
    groups, listed = read_groups_and_features(document)
    signal_field, named = document.get("signal"), tuple(f.name for f in listed)
    signal = None if signal_field is None else read_signal(signal_field, named)
    features = expanded(document["features"], listed, instance, signal)
    names = dict.fromkeys(f.name for f in features)
    files = _listed_files(document["files"])
    stages = tuple(
        read_stage_spec(f, names, files, len(classes))
        for f in document["stages"].items(1, MOST_STAGES)
    )
    cloud_field = document.get("cloud")
    cloud = None if cloud_field is None else read_cloud(cloud_field, names, files)
    chains = read_chains(document.get("chains"), len(stages))
    check_tiers(document["stages"], stages, chains, cloud is not None)
    check_values(document, task, stages, chains, cloud is not None)
    check_window(document, signal, stages, cloud)
    points = tuple(
        read_point(f, chains, cloud is not None, task, len(classes))
        for f in document["operating_points"].items(1, MOST_POINTS)
    )
    link = document["link"].choice(LINKS)
    if link != stages[-1].link:
        document["link"].fail(f"is {link!r}, the last stage's is {stages[-1].link!r}")
    used = [s.file for s in stages] + [SAMPLE] + ([cloud.file] if cloud is not None else [])
    used += [] if signal is None else list(signal.models)
    document["files"].unique(used, "two models share the file")
    if set(files) != set(used):
        strange = sorted(set(files) ^ set(used))[0]
        document["files"].fail(f"and what the manifest uses differ in {strange!r}")
    missing = document["missing"]
    missing.keys(("stages", "cloud"))
    encoder, packed_as = document.get("encoder"), document.get("packed_as")
    manifest = Manifest(
        name=_topic_level(document["name"]),
        version=_topic_level(document["version"]),
        created=_time(document["created"]),
        min_runtime_version=document["min_runtime_version"].matching(VERSION, "as 1.2.3"),
        task=task,
        instance=instance,
        classes=classes,
        link=link,
        features=features,
        groups=groups,
        prices=read_prices(document["prices"], request_dtype(instance, signal).itemsize),
        missing={k: missing[k].choice(MISSING) for k in ("stages", "cloud")},
        every_stage=stages,
        chains=chains,
        cloud=cloud,
        operating_points=points,
        active=document["active"].integer(0, len(points) - 1),
        files=files,
        reference_accuracy=document.optional_number("reference_accuracy", least_merit(task), 1.0),
        encoder=None if encoder is None else read_encoder(encoder, tuple(names)),
        signal=signal,
        reference_weighted_accuracy=document.optional_number(
            "reference_weighted_accuracy", 0.0, 1.0
        ),
        reference_recall=read_by_class(document, "reference_recall", len(classes)),
        class_rows=read_class_rows(document.get("class_rows"), len(classes)),
        min_recall=read_by_class(document, "min_recall", len(classes)),
        min_precision=read_by_class(document, "min_precision", len(classes)),
        packed_as=None if packed_as is None else packed_as.choice(PACKED_AS),
        max_instance_cost=document.optional_number("max_instance_cost", 0.0, LARGEST),
    )
    check_highest_costs(document["operating_points"], manifest)
    return manifest


def check_highest_costs(points: JsonField, manifest: Manifest) -> None:
    """Refuse operating points at which an instance may cost more than `max_instance_cost`."""
    most = manifest.max_instance_cost
    if most is None:
        return
    limits: dict[int, NDArray[np.float64]] = {}
    fields = points.items(1, MOST_POINTS)
    for i, (field, point) in enumerate(zip(fields, manifest.operating_points, strict=True)):
        if point.chain not in limits:
            limits[point.chain] = manifest.with_active(i).exit_costs()
        costs = limits[point.chain]
        highest = max(costs[e] for e in reachable_exits(point.thresholds))
        if highest > most:
            field.fail(f"may cost {highest:g} an instance, more than max_instance_cost {most:g}")


def _listed_files(field: JsonField) -> dict[str, FileSpec]:
    files = read_files(field, most=MOST_STAGES + MOST_BLOCK_MODELS + 2, most_bytes=MOST_BYTES)
    if sum(f.size for f in files.values()) > MOST_BYTES_OF_ALL:
        field.fail(f"of more than {MOST_BYTES_OF_ALL} B together")
    if MANIFEST in files:
        field.fail(f"lists {MANIFEST!r} itself")
    return files


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
