"""Read what an instance and its answer are: classes, array, prices; check features and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from gatewise.documents.json_reader import JsonField
from gatewise.models.instances import MOST_VALUES, InstanceSpec
from gatewise_export.bundle.manifest_parts import specs
from gatewise_signals.signal_input import SignalInput


def read_classes(field: JsonField, task: specs.Task) -> tuple[specs.ClassLabel, ...]:
    """Read the user's labels, all of one type; none where answers are values."""
    if task != "classify":
        field.items(0, 0)
        return ()
    items = field.items(2, specs.MOST_CLASSES)
    for item in items:
        if type(item.value) not in (int, float, str, bool):
            item.fail("must be a number, text, true or false")
        if type(item.value) is not type(items[0].value):
            item.fail("is of another type than the first class")
        if isinstance(item.value, float):
            item.number(-specs.LARGEST, specs.LARGEST)
    field.unique([i.value for i in items], "class")
    return tuple(i.value for i in items)


def read_instance(field: JsonField | None) -> InstanceSpec | None:
    """Read what an instance is that is an array."""
    if field is None:
        return None
    spec = field.convert(InstanceSpec)
    if spec.n_values > MOST_VALUES:
        field["shape"].fail(f"holds {spec.n_values} values; at most {MOST_VALUES} are allowed")
    return spec


def check_groups(document: JsonField, values: Mapping[str, Any]) -> None:
    """Refuse groups that nothing belongs to or requires, and such that are not listed."""
    groups, features = values["groups"], values["features"]
    document["groups"].unique([g.name for g in groups], "group")
    known = {g.name for g in groups}
    for item, feature in zip(
        document["features"].items(1, specs.MOST_FEATURES), features, strict=True
    ):
        if feature.group is not None and feature.group not in known:
            item["group"].fail(f"{feature.group!r} is not among the groups")
    document["features"].unique([f.name for f in features], "feature")
    needed = {name for group in groups for name in group.requires}
    if needed - known:
        document["groups"].fail(f"{sorted(needed - known)[0]!r} is required, and is none of them")
    empty = known - {f.group for f in features} - needed
    if empty:
        document["groups"].fail(f"no feature is in {sorted(empty)[0]!r}")
    try:
        TopologicalSorter({g.name: g.requires for g in groups}).prepare()
    except CycleError as error:
        document["groups"].fail(f"require each other: {', '.join(error.args[1])}")


def expanded(
    field: JsonField,
    listed: Sequence[specs.FeatureSpec],
    instance: InstanceSpec | None,
    signal: SignalInput | None,
) -> tuple[specs.FeatureSpec, ...]:
    """Put the values of an array in the place of the one name that stands for them."""
    features, values = list(listed), () if signal is None else signal.window_names
    if instance is not None and [f.name for f in listed] == [specs.INSTANCE]:
        values = tuple(instance.names)
    if values:
        own, group = features[-1].own, features[-1].group
        features[-1:] = [specs.FeatureSpec(name, own, group) for name in values]  # up to a million
    if instance is not None and len(features) != instance.n_values:
        field.fail(
            f"lists {len(features)}, an instance of shape {list(instance.shape)} has "
            f"{instance.n_values} values"
        )
    return tuple(features)
