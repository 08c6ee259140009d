"""Read what an instance and its answer are: classes, array, features, groups, prices."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from gatewise.costs import CloudPrices
from gatewise.errors import InputError
from gatewise.models.instances import DTYPES, JPEG, MOST_VALUES, InstanceSpec
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.manifest_parts.specs import (
    INSTANCE,
    LARGEST,
    MOST_CLASSES,
    MOST_FEATURES,
    ClassLabel,
    FeatureSpec,
    GroupSpec,
    Task,
)
from gatewise_signals.signal_input import SignalInput


def read_classes(field: JsonField, task: Task) -> tuple[ClassLabel, ...]:
    """Read the user's labels, all of one type; none where answers are values."""
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
    field.unique([i.value for i in items], "class")
    return tuple(i.value for i in items)


def read_instance(field: JsonField | None) -> InstanceSpec | None:
    """Read what an instance is that is an array."""
    if field is None:
        return None
    field.keys(("shape", "dtype"), ("encoding",))
    sides = tuple(d.integer(1, MOST_VALUES) for d in field["shape"].items(1, 8))
    given = field.get("encoding")
    encoding = None if given is None else given.choice((JPEG,))
    try:
        spec = InstanceSpec(sides, field["dtype"].choice(DTYPES), encoding)
    except InputError as error:
        field.fail(str(error))
    if spec.n_values > MOST_VALUES:
        field["shape"].fail(f"holds {spec.n_values} values; at most {MOST_VALUES} are allowed")
    return spec


def read_groups_and_features(
    document: JsonField,
) -> tuple[tuple[GroupSpec, ...], tuple[FeatureSpec, ...]]:
    """Read feature groups and features, as they are listed."""
    groups = []
    for item in document["groups"].items(0, MOST_FEATURES):
        item.keys(("name", "shared"), ("requires",))
        before = item.get("requires")
        requires = () if before is None else before.items(1, MOST_FEATURES)
        shared = item["shared"].number(0.0, LARGEST)
        groups.append(GroupSpec(item["name"].text(), shared, tuple(g.text() for g in requires)))
    document["groups"].unique([g.name for g in groups], "group")
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
    document["features"].unique([f.name for f in features], "feature")
    _check_groups(document["groups"], groups, features)
    return tuple(groups), tuple(features)


def expanded(
    field: JsonField,
    listed: Sequence[FeatureSpec],
    instance: InstanceSpec | None,
    signal: SignalInput | None,
) -> tuple[FeatureSpec, ...]:
    """Put the values of an array in the place of the one name that stands for them."""
    features, values = list(listed), () if signal is None else signal.window_names
    if instance is not None and [f.name for f in listed] == [INSTANCE]:
        values = tuple(instance.names)
    if values:
        own, group = features[-1].own, features[-1].group
        features[-1:] = [FeatureSpec(name, own, group) for name in values]  # up to a million
    if instance is not None and len(features) != instance.n_values:
        field.fail(
            f"lists {len(features)}, an instance of shape {list(instance.shape)} has "
            f"{instance.n_values} values"
        )
    return tuple(features)


def _check_groups(
    field: JsonField, groups: Sequence[GroupSpec], features: Sequence[FeatureSpec]
) -> None:
    """Refuse groups that nothing belongs to or requires, and prerequisites that are none."""
    known = {g.name for g in groups}
    needed = {name for group in groups for name in group.requires}
    if needed - known:
        field.fail(f"{sorted(needed - known)[0]!r} is required, and is none of them")
    empty = known - {f.group for f in features} - needed
    if empty:
        field.fail(f"no feature is in {sorted(empty)[0]!r}")
    try:
        TopologicalSorter({g.name: g.requires for g in groups}).prepare()
    except CycleError as error:
        field.fail(f"require each other: {', '.join(error.args[1])}")


def read_prices(field: JsonField, item_size: int) -> CloudPrices:
    """Read the prices of an offload beside its features."""
    keys = ("request", "byte", "evaluation")
    field.keys(keys, ("gateway",))
    return CloudPrices(
        **{k: field[k].number(0.0, LARGEST) for k in keys},
        gateway=field.optional_number("gateway", 0.0, LARGEST) or 0.0,
        item_size=item_size,
    )
