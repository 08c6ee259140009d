"""Check stages, the high-cost model, the chains that they form, and operating points of these."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from gatewise.decision import ALWAYS_STOP
from gatewise.documents.json_reader import JsonField
from gatewise.tiers import in_order
from gatewise_export.bundle.manifest_parts import specs
from gatewise_signals.signal_input import WINDOW, SignalInput

Model = TypeVar("Model", specs.StageSpec, specs.CloudSpec)


def checked_stage(
    field: JsonField,
    stage: specs.StageSpec,
    features: dict[str, None],
    files: dict[str, specs.FileSpec],
    classes: int,
) -> specs.StageSpec:
    """Check a stage and that its outputs fit its link; give it with all of its inputs."""
    stage = with_inputs(field, stage, features, files)
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


def with_inputs(
    field: JsonField, spec: Model, features: dict[str, None], files: dict[str, specs.FileSpec]
) -> Model:
    """Check file and inputs of a stage or high-cost model; list the values of an array."""
    if spec.file not in files:
        field["file"].fail(f"{spec.file!r} is not listed under files")
    for array in (specs.INSTANCE, WINDOW):
        if spec.inputs == (array,) and array not in features:
            values = tuple(name for name in features if name.startswith(f"{array}["))
            if values:
                return replace(spec, inputs=values)
    for item, name in zip(field["inputs"].items(0, specs.MOST_FEATURES), spec.inputs, strict=True):
        if name not in features:
            item.fail(f"{name!r} is not a feature")
    field["inputs"].unique(spec.inputs, "feature")
    return spec


def read_chains(field: JsonField | None, n_stages: int) -> tuple[tuple[int, ...], ...]:
    """Read the chains; without a list of them all stages are one."""
    if field is None:
        return (tuple(range(n_stages)),)
    chains = []
    for item in field.items(1, specs.MOST_STAGES):
        chain = tuple(i.integer(0, n_stages - 1) for i in item.items(1, n_stages))
        item.unique(chain, "stage")
        chains.append(chain)
    idle = set(range(n_stages)).difference(*chains)
    if idle:
        field.fail(f"stage {min(idle)} is in no chain")
    return tuple(chains)


def check_tiers(
    field: JsonField,
    stages: tuple[specs.StageSpec, ...],
    chains: tuple[tuple[int, ...], ...],
    cloud: bool,
) -> None:
    """Check that chains start on the device and never come back to it."""
    for number, (item, stage) in enumerate(
        zip(field.items(1, specs.MOST_STAGES), stages, strict=True)
    ):
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
    task: specs.Task,
    stages: tuple[specs.StageSpec, ...],
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
    for item, stage in zip(document["stages"].items(1, specs.MOST_STAGES), stages, strict=True):
        if stage.link != "identity":
            item["link"].fail(f"must be 'identity' for task {task!r}")
        if stage.score != "margin":
            item["score"].fail(f"must be 'margin' for task {task!r}")


def check_window(
    document: JsonField,
    signal: SignalInput | None,
    stages: tuple[specs.StageSpec, ...],
    cloud: specs.CloudSpec | None,
) -> None:
    """Check that requests carry the values of a window that is listed, and that no stage reads."""
    carries = cloud is not None and cloud.carries is not None
    if signal is None or not signal.raw:
        if carries:
            document["cloud"]["carries"].fail(f"the features do not list {WINDOW!r}")
        return
    values = set(signal.window_names)
    for item, stage in zip(document["stages"].items(1, specs.MOST_STAGES), stages, strict=True):
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


def check_point(
    field: JsonField,
    point: specs.OperatingPointSpec,
    chains: tuple[tuple[int, ...], ...],
    cloud: bool,
    task: specs.Task,
    n_classes: int,
) -> None:
    """Check an operating point of one of the chains."""
    if field.get("chain") is not None:
        field["chain"].integer(0, len(chains) - 1)
    length = len(chains[point.chain])
    field["thresholds"].items(length, length)
    if not cloud and point.thresholds[-1] != ALWAYS_STOP:
        field["thresholds"].fail(
            f"must end with {ALWAYS_STOP!r} (always stop): there is no cloud model to go on to"
        )
    field["accuracy"].number(least_merit(task), 1.0)
    if task != "regress" and field.get("accuracy_error") is not None:
        field["accuracy_error"].number(0.0, 1.0)
    for key in ("recall", "precision"):
        check_by_class(field.get(key), n_classes)
    if point.interval is not None and point.interval[0] > point.interval[1]:
        field["interval"].fail("goes from {} down to {}".format(*point.interval))
    low, high = point.gate_range or (None, None)
    if high is not None and (low is None or low > high):
        field["gate_range"].fail(
            "must not fall: the least threshold comes first, null is above all"
        )


def least_merit(task: specs.Task) -> float:
    """Least accuracy or average precision; R² has no floor."""
    return -specs.LARGEST if task == "regress" else 0.0


def check_by_class(field: JsonField | None, n_classes: int) -> None:
    """Demand an entry for each class."""
    if field is not None:
        field.items(n_classes, n_classes)
