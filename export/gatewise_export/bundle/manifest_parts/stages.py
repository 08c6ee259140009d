"""Read the stages and the high-cost model, and check which chains they may form."""

from __future__ import annotations

from typing import get_args

from gatewise.decision import Link, Score
from gatewise.tiers import TIERS, in_order
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.manifest_parts.specs import (
    INSTANCE,
    MOST_BYTES,
    MOST_CLASSES,
    MOST_FEATURES,
    MOST_STAGES,
    CloudKind,
    CloudSpec,
    FileSpec,
    Origin,
    StageKind,
    StageSpec,
    Task,
)
from gatewise_signals.signal_input import WINDOW, SignalInput

LINKS: tuple[Link, ...] = get_args(Link)
SCORES: tuple[Score, ...] = get_args(Score)
ORIGINS: tuple[Origin, ...] = get_args(Origin)
STAGE_KINDS: tuple[StageKind, ...] = get_args(StageKind)
CLOUD_KINDS: tuple[CloudKind, ...] = get_args(CloudKind)


def read_stage_spec(
    field: JsonField, features: dict[str, None], files: dict[str, FileSpec], classes: int
) -> StageSpec:
    """Read a stage; its outputs must fit its link."""
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


def read_cloud(
    field: JsonField, features: dict[str, None], files: dict[str, FileSpec]
) -> CloudSpec:
    """Read the high-cost model."""
    field.keys(("file", "inputs", "kind", "link"), ("backend", "carries"))
    backend, carries = field.get("backend"), field.get("carries")
    return CloudSpec(
        file=_file(field["file"], files),
        inputs=_inputs(field["inputs"], features),
        kind=field["kind"].choice(CLOUD_KINDS),
        link=field["link"].choice(LINKS),
        backend=None if backend is None else backend.text(),
        carries=None if carries is None else carries.choice((WINDOW,)),
    )


def read_chains(field: JsonField | None, n_stages: int) -> tuple[tuple[int, ...], ...]:
    """Read the chains; without a list of them all stages are one."""
    if field is None:
        return (tuple(range(n_stages)),)
    chains = []
    for item in field.items(1, MOST_STAGES):
        chain = tuple(i.integer(0, n_stages - 1) for i in item.items(1, n_stages))
        item.unique(chain, "stage")
        chains.append(chain)
    idle = set(range(n_stages)).difference(*chains)
    if idle:
        field.fail(f"stage {min(idle)} is in no chain")
    return tuple(chains)


def check_tiers(
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


def check_values(
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


def check_window(
    document: JsonField,
    signal: SignalInput | None,
    stages: tuple[StageSpec, ...],
    cloud: CloudSpec | None,
) -> None:
    """Check that requests carry the values of a window that is listed, and that no stage reads."""
    carries = cloud is not None and cloud.carries is not None
    if signal is None or not signal.raw:
        if carries:
            document["cloud"]["carries"].fail(f"the features do not list {WINDOW!r}")
        return
    values = set(signal.window_names)
    for item, stage in zip(document["stages"].items(1, MOST_STAGES), stages, strict=True):
        if not values.isdisjoint(stage.inputs):
            item["inputs"].fail("holds values of the window, which the cloud's model alone reads")
        if stage.tier != "device":
            item["tier"].fail("must be 'device': the request carries the window alone")
    if carries and cloud is not None:
        if not cloud.inputs or not values.isdisjoint(cloud.inputs):
            document["cloud"]["inputs"].fail("must be features of blocks: the window is carried")
        if functions := signal.functions_of(cloud.inputs):
            document["cloud"]["carries"].fail(f"{functions[0]!r} is a function: no worker has it")
    elif cloud is None or cloud.inputs != signal.window_names:
        document["features"].fail(f"lists {WINDOW!r}, and it is not what the cloud's model reads")


def _file(field: JsonField, files: dict[str, FileSpec]) -> str:
    name = field.file_name()
    if name not in files:
        field.fail(f"{name!r} is not listed under files")
    return name


def _inputs(field: JsonField, features: dict[str, None]) -> tuple[str, ...]:
    items = field.items(0, MOST_FEATURES)
    for array in (INSTANCE, WINDOW):
        if [i.value for i in items] == [array] and array not in features:
            values = tuple(name for name in features if name.startswith(f"{array}["))
            if values:
                return values
    for item in items:
        if item.text() not in features:
            item.fail(f"{item.text()!r} is not a feature")
    names = tuple(i.text() for i in items)
    field.unique(names, "feature")
    return names
