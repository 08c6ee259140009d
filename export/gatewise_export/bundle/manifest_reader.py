"""Reader of ``manifest.json`` that checks every type, range, name and reference."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from gatewise.columns.document import read_encoder
from gatewise.costs import CloudPrices
from gatewise.decision import ALWAYS_STOP, Link, Score
from gatewise.models.instances import DTYPES, MOST_VALUES, InstanceSpec
from gatewise.tiers import TIERS, in_order
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.manifest import (
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
    Manifest,
    Measured,
    Missing,
    OperatingPointSpec,
    Origin,
    StageKind,
    StageSpec,
    Task,
)

__all__ = ["MOST_BYTES", "read_manifest"]

LINKS: tuple[Link, ...] = ("sigmoid", "softmax", "identity")
TASKS: tuple[Task, ...] = ("classify", "regress", "rank")
SCORES: tuple[Score, ...] = ("margin", "column")
ORIGINS: tuple[Origin, ...] = ("gatewise", "given")
MEASURED: tuple[Measured, ...] = ("accuracy", "agreement")
STAGE_KINDS: tuple[StageKind, ...] = ("graph", "lazy")
CLOUD_KINDS: tuple[CloudKind, ...] = ("margins", "classifier")
MISSING: tuple[Missing, ...] = ("allowed", "refused")

MOST_FEATURES = 65535
MOST_CLASSES = 65535
MOST_STAGES = 1024
MOST_POINTS = 65536
MOST_BYTES = 1 << 30
"""A file of a bundle is at most this large (1 GiB)."""
MOST_BYTES_OF_ALL = 2 << 30
"""All files of a bundle together (2 GiB): each is read through on opening."""
LARGEST = 1e300
FLOAT32 = float(np.finfo(np.float32).max)

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)

NEEDED = (
    "schema_version", "name", "version", "created", "min_runtime_version", "task", "classes",
    "link", "features", "groups", "prices", "missing", "stages", "cloud", "operating_points",
    "active", "files",
)  # fmt: skip


def read_manifest(text: str | bytes) -> Manifest:
    """Read and check the text of a manifest."""
    document = JsonField.parse(text)
    document["schema_version"].integer(SCHEMA_VERSION, SCHEMA_VERSION)
    optional = ("chains", "reference_accuracy", "encoder", "instance", *CLASS_FIGURES)
    document.keys(NEEDED, optional)
    task = document["task"].choice(TASKS)
    classes = _classes(document["classes"], task)
    instance = _instance(document.get("instance"))
    groups, features = _groups_and_features(document, instance)
    names = dict.fromkeys(f.name for f in features)
    files = _files(document["files"])
    stages = tuple(
        _stage(f, names, files, len(classes)) for f in document["stages"].items(1, MOST_STAGES)
    )
    cloud_field = document.get("cloud")
    cloud = None if cloud_field is None else _cloud(cloud_field, names, files)
    chains = _chains(document.get("chains"), len(stages))
    _tiers(document["stages"], stages, chains, cloud is not None)
    _only_values(document, task, stages, chains, cloud is not None)
    points = tuple(
        _point(f, chains, cloud is not None, task, len(classes))
        for f in document["operating_points"].items(1, MOST_POINTS)
    )
    link = document["link"].choice(LINKS)
    if link != stages[-1].link:
        document["link"].fail(f"is {link!r}, the last stage's is {stages[-1].link!r}")
    used = [s.file for s in stages] + [SAMPLE] + ([cloud.file] if cloud is not None else [])
    _unique(document["files"], used, "two models share the file")
    if set(files) != set(used):
        strange = sorted(set(files) ^ set(used))[0]
        document["files"].fail(f"and what the manifest uses differ in {strange!r}")
    missing = document["missing"]
    missing.keys(("stages", "cloud"))
    reference = document.get("reference_accuracy")
    encoder = document.get("encoder")
    return Manifest(
        name=_topic_level(document["name"]),
        version=_topic_level(document["version"]),
        created=_time(document["created"]),
        min_runtime_version=_match(document["min_runtime_version"], VERSION, "as 1.2.3"),
        task=task,
        instance=instance,
        classes=classes,
        link=link,
        features=features,
        groups=groups,
        prices=_prices(document["prices"], 4 if instance is None else instance.item_size),
        missing={k: missing[k].choice(MISSING) for k in ("stages", "cloud")},
        every_stage=stages,
        chains=chains,
        cloud=cloud,
        operating_points=points,
        active=document["active"].integer(0, len(points) - 1),
        files=files,
        reference_accuracy=None if reference is None else _merit(reference, task),
        encoder=None
        if encoder is None
        else read_encoder(encoder, tuple(feature.name for feature in features)),
        reference_weighted_accuracy=_share(document, "reference_weighted_accuracy"),
        reference_recall=_by_class(document, "reference_recall", len(classes)),
        class_rows=_class_rows(document.get("class_rows"), len(classes)),
        min_recall=_by_class(document, "min_recall", len(classes)),
        min_precision=_by_class(document, "min_precision", len(classes)),
    )


# -- parts ---------------------------------------------------------------------------------


def _classes(field: JsonField, task: Task) -> tuple[ClassLabel, ...]:
    if task != "classify":
        field.items(0, 0)
        return ()
    items = field.items(2, MOST_CLASSES)
    for item in items:
        if type(item.value) not in (int, float, str, bool):
            item.fail("must be a number, text, true or false")
        if type(item.value) is not type(items[0].value):
            item.fail("is of another type than the first class")
        if isinstance(item.value, float):
            item.number(-LARGEST, LARGEST)
    _unique(field, [i.value for i in items], "class")
    return tuple(i.value for i in items)


def _instance(field: JsonField | None) -> InstanceSpec | None:
    if field is None:
        return None
    field.keys(("shape", "dtype"))
    sides = tuple(d.integer(1, MOST_VALUES) for d in field["shape"].items(1, 8))
    spec = InstanceSpec(sides, field["dtype"].choice(DTYPES))
    if spec.n_values > MOST_VALUES:
        field["shape"].fail(f"holds {spec.n_values} values; at most {MOST_VALUES} are allowed")
    return spec


def _groups_and_features(
    document: JsonField, instance: InstanceSpec | None
) -> tuple[tuple[GroupSpec, ...], tuple[FeatureSpec, ...]]:
    groups = []
    for item in document["groups"].items(0, MOST_FEATURES):
        item.keys(("name", "shared"))
        groups.append(GroupSpec(item["name"].text(), item["shared"].number(0.0, LARGEST)))
    _unique(document["groups"], [g.name for g in groups], "group")
    known = {g.name for g in groups}
    features = []
    for item in document["features"].items(1, MOST_FEATURES):
        item.keys(("name", "own", "group"))
        field = item.get("group")
        group = None if field is None else field.text()
        if group is not None and group not in known:
            item["group"].fail(f"{group!r} is not among the groups")
        own = item["own"].number(0.0, LARGEST)
        features.append(FeatureSpec(item["name"].text(), own, group))
    _unique(document["features"], [f.name for f in features], "feature")
    if instance is not None:
        if [f.name for f in features] == [INSTANCE]:  # one stands for all
            features = [replace(features[0], name=name) for name in instance.names]
        if len(features) != instance.n_values:
            document["features"].fail(
                f"lists {len(features)}, an instance of shape {list(instance.shape)} has "
                f"{instance.n_values} values"
            )
    empty = known - {f.group for f in features}
    if empty:
        document["groups"].fail(f"no feature is in {sorted(empty)[0]!r}")
    return tuple(groups), tuple(features)


def _prices(field: JsonField, item_size: int) -> CloudPrices:
    keys = ("request", "byte", "evaluation")
    field.keys(keys, ("gateway",))
    gateway = field.get("gateway")
    return CloudPrices(
        **{k: field[k].number(0.0, LARGEST) for k in keys},
        gateway=0.0 if gateway is None else gateway.number(0.0, LARGEST),
        item_size=item_size,
    )


def _stage(
    field: JsonField, features: dict[str, None], files: dict[str, FileSpec], classes: int
) -> StageSpec:
    needed = ("file", "kind", "inputs", "carry", "tier", "bytes", "link", "score", "outputs")
    field.keys(needed, ("origin",))
    field["carry"].items(0, 0)
    origin = field.get("origin")
    stage = StageSpec(
        file=_file(field["file"], files),
        kind=field["kind"].choice(STAGE_KINDS),
        inputs=_inputs(field["inputs"], features),
        tier=field["tier"].choice(TIERS),
        bytes=field["bytes"].integer(0, MOST_BYTES),
        link=field["link"].choice(LINKS),
        score=field["score"].choice(SCORES),
        outputs=field["outputs"].integer(1, MOST_CLASSES + 1),
        origin="gatewise" if origin is None else origin.choice(ORIGINS),
    )
    if stage.origin == "given" and stage.kind != "graph":
        field["origin"].fail("must be 'gatewise': only a graph can be given")
    if stage.bytes != files[stage.file].size:
        field["bytes"].fail(f"is {stage.bytes}, but files says {files[stage.file].size}")
    margins = stage.outputs - (stage.score == "column")
    fitting = 1 if stage.link == "sigmoid" or not classes else classes
    if margins != fitting or (stage.link == "sigmoid" and classes != 2):
        field["outputs"].fail(
            f"leaves {margins} margins, which do not fit link {stage.link!r} and {classes} classes"
        )
    return stage


def _cloud(field: JsonField, features: dict[str, None], files: dict[str, FileSpec]) -> CloudSpec:
    field.keys(("file", "inputs", "kind", "link"), ("backend",))
    backend = field.get("backend")
    return CloudSpec(
        file=_file(field["file"], files),
        inputs=_inputs(field["inputs"], features),
        kind=field["kind"].choice(CLOUD_KINDS),
        link=field["link"].choice(LINKS),
        backend=None if backend is None else backend.text(),
    )


def _chains(field: JsonField | None, n_stages: int) -> tuple[tuple[int, ...], ...]:
    if field is None:
        return (tuple(range(n_stages)),)
    chains = []
    for item in field.items(1, MOST_STAGES):
        chain = tuple(i.integer(0, n_stages - 1) for i in item.items(1, n_stages))
        _unique(item, chain, "stage")
        chains.append(chain)
    idle = set(range(n_stages)).difference(*chains)
    if idle:
        field.fail(f"stage {min(idle)} is in no chain")
    return tuple(chains)


def _tiers(
    field: JsonField,
    stages: tuple[StageSpec, ...],
    chains: tuple[tuple[int, ...], ...],
    cloud: bool,
) -> None:
    """Check that chains start on the device and never come back to it."""
    for number, (item, stage) in enumerate(zip(field.items(1, MOST_STAGES), stages, strict=True)):
        if stage.tier != "device" and not cloud:
            item["tier"].fail("must be 'device': there is no cloud model")
        if stage.tier != "device" and stage.kind == "lazy":
            item["tier"].fail("must be 'device': a lazy stage asks the device's sensors")
        for chain in chains:
            upto = chain[: chain.index(number) + 1] if number in chain else ()
            if not in_order([stages[s].tier for s in upto]):
                item["tier"].fail(
                    f"{stage.tier!r} cannot follow {[stages[s].tier for s in upto[:-1]]}: a chain "
                    "starts on the device and goes on to a gateway, then to the cloud"
                )


def _only_values(
    document: JsonField,
    task: Task,
    stages: tuple[StageSpec, ...],
    chains: tuple[tuple[int, ...], ...],
    cloud: bool,
) -> None:
    """Check what a bundle that answers with values may hold: chains of one plain stage."""
    if task == "classify":
        return
    if cloud:
        document["cloud"].fail(f"must be null: there are no classes to offload for task {task!r}")
    if any(len(chain) != 1 for chain in chains):
        JsonField(None, "chains").fail(f"must hold one stage each for task {task!r}")
    for item, stage in zip(document["stages"].items(1, MOST_STAGES), stages, strict=True):
        if stage.link != "identity":
            item["link"].fail(f"must be 'identity' for task {task!r}")
        if stage.score != "margin":
            item["score"].fail(f"must be 'margin' for task {task!r}")


def _merit(field: JsonField, task: Task) -> float:
    """An accuracy or average precision from 0 to 1, or R², which has no floor."""
    return field.number(-LARGEST if task == "regress" else 0.0, 1.0)


def _point(
    field: JsonField,
    chains: tuple[tuple[int, ...], ...],
    cloud: bool,
    task: Task,
    n_classes: int,
) -> OperatingPointSpec:
    field.keys(
        ("thresholds", "expected_cost", "accuracy", "offload_rate", "guarantee"),
        ("accuracy_error", "chain", "agreement", "measured", *POINT_FIGURES),
    )
    agreement, measured = field.get("agreement"), field.get("measured")
    chain_field, error = field.get("chain"), field.get("accuracy_error")
    chain = 0 if chain_field is None else chain_field.integer(0, len(chains) - 1)
    length = len(chains[chain])
    thresholds = tuple(
        None if t.value is None else t.number(-FLOAT32, FLOAT32)
        for t in field["thresholds"].items(length, length)
    )
    if not cloud and thresholds[-1] != ALWAYS_STOP:
        field["thresholds"].fail(
            f"must end with {ALWAYS_STOP!r} (always stop): there is no cloud model to go on to"
        )
    guarantee = field.get("guarantee")
    return OperatingPointSpec(
        thresholds=thresholds,
        expected_cost=field["expected_cost"].number(0.0, LARGEST),
        accuracy=_merit(field["accuracy"], task),
        offload_rate=field["offload_rate"].number(0.0, 1.0),
        guarantee=None if guarantee is None else _plain(guarantee),
        accuracy_error=0.0
        if error is None
        else error.number(0.0, LARGEST if task == "regress" else 1.0),
        chain=chain,
        agreement=None
        if agreement is None or agreement.value is None
        else agreement.number(0.0, 1.0),
        interval=_interval(field.get("interval")),
        measured="accuracy" if measured is None else measured.choice(MEASURED),
        weighted_accuracy=_share(field, "weighted_accuracy"),
        recall=_by_class(field, "recall", n_classes),
        precision=_by_class(field, "precision", n_classes),
        balanced_accuracy=_share(field, "balanced_accuracy"),
        log_loss=_share(field, "log_loss", LARGEST),
        brier_score=_share(field, "brier_score", 2.0),
        gate_range=_gate_range(field.get("gate_range")),
    )


def _share(field: JsonField, key: str, most: float = 1.0) -> float | None:
    """An optional number from 0 on."""
    found = field.get(key)
    return None if found is None else found.number(0.0, most)


def _by_class(field: JsonField, key: str, n_classes: int) -> ByClass | None:
    """An optional list of a share or null for each class."""
    found = field.get(key)
    if found is None:
        return None
    items = found.items(n_classes, n_classes)
    return tuple(None if item.value is None else item.number(0.0, 1.0) for item in items)


def _class_rows(field: JsonField | None, n_classes: int) -> tuple[int, ...] | None:
    if field is None:
        return None
    return tuple(item.integer(0, 1 << 53) for item in field.items(n_classes, n_classes))


def _gate_range(field: JsonField | None) -> tuple[float | None, float | None] | None:
    if field is None:
        return None
    low, high = (
        None if item.value is None else item.number(-FLOAT32, FLOAT32) for item in field.items(2, 2)
    )
    if high is not None and (low is None or low > high):
        field.fail("must not fall: the least threshold comes first, null is above all")
    return low, high


def _interval(field: JsonField | None) -> tuple[float, float] | None:
    if field is None or field.value is None:
        return None
    low, high = (end.number(0.0, 1.0) for end in field.items(2, 2))
    if low > high:
        field.fail(f"goes from {low} down to {high}")
    return low, high


def _files(field: JsonField) -> dict[str, FileSpec]:
    files = {}
    for name, item in field.entries(MOST_STAGES + 2).items():
        _match(JsonField(name, field.where), FILE_NAME, "a plain file name: letters, digits, . _ -")
        item.keys(("sha256", "size"))
        files[name] = FileSpec(
            sha256=_match(item["sha256"], SHA256, "64 hexadecimal digits"),
            size=item["size"].integer(0, MOST_BYTES),
        )
    if sum(f.size for f in files.values()) > MOST_BYTES_OF_ALL:
        field.fail(f"of more than {MOST_BYTES_OF_ALL} B together")
    if MANIFEST in files:
        field.fail(f"lists {MANIFEST!r} itself")
    return files


# -- values --------------------------------------------------------------------------------


def _file(field: JsonField, files: dict[str, FileSpec]) -> str:
    name = _match(field, FILE_NAME, "a plain file name: letters, digits, . _ -")
    if name not in files:
        field.fail(f"{name!r} is not listed under files")
    return name


def _inputs(field: JsonField, features: dict[str, None]) -> tuple[str, ...]:
    items = field.items(0, MOST_FEATURES)
    if [i.value for i in items] == [INSTANCE] and f"{INSTANCE}[0]" in features:
        return tuple(features)  # all values of the array
    for item in items:
        if item.text() not in features:
            item.fail(f"{item.text()!r} is not a feature")
    names = tuple(i.text() for i in items)
    _unique(field, names, "feature")
    return names


def _plain(field: JsonField) -> dict[str, Any]:
    """Free entries, but only texts, numbers, true, false and null."""
    entries = field.entries(64)
    for entry in entries.values():
        if isinstance(entry.value, dict | list):
            entry.fail("must be a plain value")
    return {k: e.value for k, e in entries.items()}


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


def _match(field: JsonField, pattern: re.Pattern[str], wanted: str) -> str:
    text = field.text()
    if pattern.fullmatch(text) is None:
        field.fail(f"{text!r} is not {wanted}")
    return text


def _unique(field: JsonField, values: Iterable[Any], what: str) -> None:
    seen = set()
    for value in values:
        if value in seen:
            field.fail(f"{what} {value!r} stands twice")
        seen.add(value)
