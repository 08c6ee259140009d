"""Tables that the commands print: of a bundle, its frontier and its checks."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gatewise.console import table
from gatewise.formats import byte_size

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_training.operating_points.frontier import Frontier

__all__ = ["frontier_of", "print_bundle", "print_checks", "print_frontier", "print_trained"]

MERITS = {"classify": "accuracy", "regress": "R²", "rank": "AP@5"}
"""Names of an operating point's `accuracy`, by task."""


def print_bundle(manifest: Manifest) -> None:
    """Print what `gatewise inspect` shows."""
    costs = manifest.exit_costs().tolist()
    size = sum(f.size for f in manifest.files.values())
    point = manifest.active_point
    answers = ("answers", f"values ({manifest.task})")
    if not manifest.answers_values:
        more = ", ..." if manifest.n_classes > 8 else ""
        classes = ", ".join(map(str, manifest.classes[:8])) + more
        answers = ("classes", f"{manifest.n_classes}: {classes}")
    missing = ", ".join(f"{part}: {word}" for part, word in manifest.missing.items())
    groups = f", {len(manifest.groups)} groups" if manifest.groups else ""
    features = f"{len(manifest.features)}, price {manifest.feature_costs().total:g}{groups}"
    active = (
        f"{manifest.active} of {len(manifest.operating_points)}: cost {point.expected_cost:.4g}, "
        f"{MERITS[manifest.task]} {point.accuracy:.4f}, offload {point.offload_rate:.3f} "
        "(on validation rows)"
    )
    raw: list[tuple[str, str]] = []
    if manifest.encoder is not None:
        kinds = Counter(column.kind for column in manifest.encoder.columns)
        raw = [("raw columns", ", ".join(f"{kind}: {n}" for kind, n in kinds.items()))]
    table(
        f"{manifest.name} {manifest.version}",
        ("", ""),
        [
            ("created", manifest.created),
            answers,
            *raw,
            ("features", features),
            ("missing values", missing),
            ("operating point", active),
            ("files", f"{len(manifest.files)}, {byte_size(size)}, every hash holds"),
        ],
    )
    # a stage that acquires node by node may acquire less, and so may all exits after it
    lazy = list(accumulate((stage.kind == "lazy" for stage in manifest.stages), operator.or_))
    rows = [
        (
            str(s),
            stage.file,
            len(stage.inputs),
            f"{'up to ' * lazy[s]}{costs[s]:g}",
            _threshold(t),
            byte_size(stage.bytes),
        )
        for s, (stage, t) in enumerate(zip(manifest.stages, point.thresholds, strict=True))
    ]
    if manifest.cloud is not None:
        file = manifest.cloud.file
        size = manifest.files[file].size
        price = f"{'up to ' * lazy[-1]}{costs[-1]:g}"
        rows.append(("cloud", file, len(manifest.cloud.inputs), price, "", byte_size(size)))
    print()
    table("stages", ("stage", "file", "inputs", "cost if it ends here", "stops at", "size"), rows)


def frontier_of(manifest: Manifest) -> Frontier:
    """Make a frontier of a manifest's operating points."""
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
    """Print operating points, the active one and the hull marked."""
    hull = {id(p) for p in curve.hull().points}
    rows = []
    for i, p in enumerate(curve.points):
        active = i == manifest.active
        if hull_only and not active and id(p) not in hull:
            continue
        marks = " ".join(["hull"] * (id(p) in hull) + ["<- active"] * active)
        rows.append((i, f"{p.cost:.4g}", f"{p.accuracy:.4f}", f"{p.offload_rate:.3f}", marks))
    title = "hull of the frontier" if hull_only else "frontier"
    merit = MERITS[manifest.task]
    table(f"{title} (on validation rows)", ("point", "cost", merit, "offload", ""), rows)


def print_trained(result: dict[str, Any], manifest: Manifest) -> None:
    """Print what `gatewise train` shows."""
    test = result["test"]
    rows: list[Sequence[Any]] = [
        (policy, f"{test[policy]['accuracy']:.4f}", f"{test[policy]['cost']:.4g}", f"{share:.3f}")
        for policy, share in (("system", test["system"]["offload_rate"]), ("cloud_only", 1.0))
        if test[policy] is not None  # a single model has no cloud
    ]
    table(f"on {test['rows']} test rows", ("", "accuracy", "cost", "offload"), rows)
    print()
    print_frontier(frontier_of(manifest), manifest, hull_only=True)
    print(
        f"\n{result['bundle']}: {byte_size(result['bytes'])}; the bundle and Python differ in "
        f"{result['verify']['differing_decisions']} of {result['verify']['rows']} decisions"
    )


def print_checks(checks: dict[str, Any], checked: Sequence[str]) -> None:
    """Print what `gatewise verify` shows: the figures, and what was compared."""
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


def _threshold(value: float | None) -> str:
    if value is None:
        return "never"
    return "always" if value < -3e38 else f"{value:.4g}"
