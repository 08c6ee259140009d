"""What the commands print for people: tables of a bundle, its frontier and its checks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gatewise.console import table

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest, OperatingPointSpec
    from gatewise_training.operating_points.frontier import Frontier

__all__ = ["frontier_of", "print_bundle", "print_checks", "print_frontier", "print_trained"]


MERITS = {"classify": "accuracy", "regress": "R²", "rank": "AP@5"}
"""What an operating point's `accuracy` is, by task."""


def print_bundle(manifest: Manifest) -> None:
    """What `gatewise inspect` shows."""
    costs = manifest.exit_costs().tolist()
    size = sum(f.size for f in manifest.files.values())
    point = manifest.active_point
    answers = ("answers", f"values ({manifest.task})")
    missing = ", ".join(f"{who}: {word}" for who, word in manifest.missing.items())
    classes = ", ".join(map(str, manifest.classes[:8])) + (
        ", ..." if manifest.n_classes > 8 else ""
    )
    groups = f", {len(manifest.groups)} groups" if manifest.groups else ""
    table(
        f"{manifest.name} {manifest.version}",
        ("", ""),
        [
            ("created", manifest.created),
            answers if manifest.answers_values else ("classes", f"{manifest.n_classes}: {classes}"),
            (
                "features",
                f"{len(manifest.features)}, price {manifest.feature_costs().total:g}{groups}",
            ),
            ("missing values", missing),
            (
                "operating point",
                f"{manifest.active} of {len(manifest.operating_points)}: {_say(point, manifest)}",
            ),
            ("files", f"{len(manifest.files)}, {_size(size)}, every hash holds"),
        ],
    )
    # a stage that buys node by node may buy less, and so pay all that come after it
    lazy = list(accumulate((stage.kind == "lazy" for stage in manifest.stages), operator.or_))
    rows = [
        (
            str(s),
            stage.file,
            len(stage.inputs),
            f"{'up to ' * lazy[s]}{costs[s]:g}",
            _threshold(t),
            _size(stage.bytes),
        )
        for s, (stage, t) in enumerate(zip(manifest.stages, point.thresholds, strict=True))
    ]
    if manifest.cloud is not None:
        file = manifest.cloud.file
        size = manifest.files[file].size
        price = f"{'up to ' * lazy[-1]}{costs[-1]:g}"
        rows.append(("cloud", file, len(manifest.cloud.inputs), price, "", _size(size)))
    print()
    table("stages", ("stage", "file", "inputs", "cost if it ends here", "stops at", "size"), rows)


def frontier_of(manifest: Manifest) -> Frontier:
    """The operating points of a manifest as a frontier."""
    from gatewise_training.operating_points.frontier import Frontier, OperatingPoint

    points = tuple(
        OperatingPoint(
            thresholds=p.thresholds,
            cost=p.expected_cost,
            accuracy=p.accuracy,
            offload_rate=p.offload_rate,
            accuracy_error=p.accuracy_error,
            chain=p.chain,
        )
        for p in manifest.operating_points
    )
    best = max(p.accuracy for p in points)
    reference = manifest.reference_accuracy
    return Frontier(points, best if reference is None else reference)


def print_frontier(curve: Frontier, manifest: Manifest, *, hull_only: bool) -> None:
    """Operating points, the one in force and the hull marked."""
    hull = {id(p) for p in curve.hull().points}
    rows = []
    for i, p in enumerate(curve.points):
        active = i == manifest.active
        if hull_only and not active and id(p) not in hull:
            continue
        marks = " ".join(["hull"] * (id(p) in hull) + ["<- in force"] * active)
        rows.append((i, f"{p.cost:.4g}", f"{p.accuracy:.4f}", f"{p.offload_rate:.3f}", marks))
    title = "hull of the frontier" if hull_only else "frontier"
    merit = MERITS[manifest.task]
    table(f"{title} (on validation data)", ("point", "cost", merit, "offload", ""), rows)


def print_trained(result: dict[str, Any], manifest: Manifest) -> None:
    """What `gatewise train` shows."""
    test = result["test"]
    rows: list[Sequence[Any]] = [
        (who, f"{test[who]['accuracy']:.4f}", f"{test[who]['cost']:.4g}", f"{share:.3f}")
        for who, share in (("system", test["system"]["offload_rate"]), ("cloud_only", 1.0))
        if test[who] is not None  # a single model has no cloud
    ]
    table(
        f"on {test['rows']} held-out rows",
        ("", "accuracy", "cost", "offload"),
        rows,
    )
    print()
    print_frontier(frontier_of(manifest), manifest, hull_only=True)
    print(
        f"\n{result['bundle']}: {_size(result['bytes'])}; the bundle and Python differ in "
        f"{result['verify']['differing_decisions']} of {result['verify']['rows']} decisions"
    )


def print_checks(checks: dict[str, Any], checked: Sequence[str]) -> None:
    """What `gatewise verify` shows: the figures, and what was held against what."""
    names = {
        "rows": "rows",
        "differing_decisions": "differing decisions",
        "differing_labels": "differing labels or values",
        "differing_costs": "differing costs",
        "max_margin_difference": "largest difference of a margin",
        "cloud_label_differences": "differing labels of the high-cost model",
        "cloud_probability_max_difference": "largest difference of its probabilities",
        "accuracy": "accuracy",
        "r2": "R²",
        "cost": "mean cost",
        "offload_rate": "offloaded",
    }
    rows = [
        (text, *(f"{c[key]:.6g}" if key in c else "" for c in checks.values()))
        for key, text in names.items()
        if any(key in c for c in checks.values())
    ]
    table("verify", ("", *checks), rows)
    print()
    for line in checked:
        print(f"checked: {line}")


def _say(point: OperatingPointSpec, manifest: Manifest) -> str:
    return (
        f"cost {point.expected_cost:.4g}, {MERITS[manifest.task]} {point.accuracy:.4f}, "
        f"offload {point.offload_rate:.3f} (on validation data)"
    )


def _threshold(value: float | None) -> str:
    if value is None:
        return "never"
    return "always" if value < -3e38 else f"{value:.4g}"


def _size(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
