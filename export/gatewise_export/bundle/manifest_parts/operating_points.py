"""Read operating points, and figures by class."""

from __future__ import annotations

from typing import Any, get_args

from gatewise.decision import ALWAYS_STOP
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.manifest_parts.specs import (
    FLOAT32,
    LARGEST,
    POINT_FIGURES,
    ByClass,
    Measured,
    OperatingPointSpec,
    Task,
)

MEASURED: tuple[Measured, ...] = get_args(Measured)


def read_point(
    field: JsonField, chains: tuple[tuple[int, ...], ...], cloud: bool, task: Task, n_classes: int
) -> OperatingPointSpec:
    """Read an operating point of one of the chains."""
    field.keys(
        ("thresholds", "expected_cost", "accuracy", "offload_rate", "guarantee"),
        ("accuracy_error", "chain", "agreement", "measured", *POINT_FIGURES),
    )
    measured, chain_field = field.get("measured"), field.get("chain")
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
    guarantee, groups = field.get("guarantee"), field.get("validation_groups")
    size = field.get("bytes")
    most_error = LARGEST if task == "regress" else 1.0
    return OperatingPointSpec(
        thresholds=thresholds,
        expected_cost=field["expected_cost"].number(0.0, LARGEST),
        accuracy=field["accuracy"].number(least_merit(task), 1.0),
        offload_rate=field["offload_rate"].number(0.0, 1.0),
        guarantee=None if guarantee is None else _plain(guarantee),
        accuracy_error=field.optional_number("accuracy_error", 0.0, most_error) or 0.0,
        chain=chain,
        agreement=field.optional_number("agreement", 0.0, 1.0),
        interval=_interval(field.get("interval")),
        measured="accuracy" if measured is None else measured.choice(MEASURED),
        weighted_accuracy=field.optional_number("weighted_accuracy", 0.0, 1.0),
        recall=read_by_class(field, "recall", n_classes),
        precision=read_by_class(field, "precision", n_classes),
        balanced_accuracy=field.optional_number("balanced_accuracy", 0.0, 1.0),
        log_loss=field.optional_number("log_loss", 0.0, LARGEST),
        brier_score=field.optional_number("brier_score", 0.0, 2.0),
        gate_range=_gate_range(field.get("gate_range")),
        validation_groups=None if groups is None else groups.integer(1, 1 << 53),
        bytes=None if size is None else size.integer(0, 1 << 53),
    )


def least_merit(task: Task) -> float:
    """Least accuracy or average precision; R² has no floor."""
    return -LARGEST if task == "regress" else 0.0


def read_by_class(field: JsonField, key: str, n_classes: int) -> ByClass | None:
    """Read an optional list of a share or null for each class."""
    found = field.get(key)
    if found is None:
        return None
    items = found.items(n_classes, n_classes)
    return tuple(None if item.value is None else item.number(0.0, 1.0) for item in items)


def read_class_rows(field: JsonField | None, n_classes: int) -> tuple[int, ...] | None:
    """Read how many validation rows each class has, if that is known."""
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
    if field is None:
        return None
    low, high = (end.number(0.0, 1.0) for end in field.items(2, 2))
    if low > high:
        field.fail(f"goes from {low} down to {high}")
    return low, high


def _plain(field: JsonField) -> dict[str, Any]:
    """Free entries, but only texts, numbers, true, false and null."""
    entries = field.entries(64)
    for entry in entries.values():
        if isinstance(entry.value, dict | list):
            entry.fail("must be a plain value")
    return {k: e.value for k, e in entries.items()}
