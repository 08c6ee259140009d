"""Print what `gatewise train` measured on the test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatewise.console import print_table
from gatewise.formats import byte_size
from gatewise_export.commands.bundle_tables import print_cloud_lines
from gatewise_export.commands.figure_texts import (
    MAX_CLASSES_SHOWN,
    format_class_share,
    sort_by_recall,
)
from gatewise_export.commands.manifest_frontier import print_frontier
from gatewise_training.operating_points.promise_check import undetected_classes

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

#: Number of test rows below which the interval of an accuracy is printed before the accuracy. With
#: 100 rows, the interval of 95 % is up to 20 percentage points wide.
MIN_ROWS_FOR_ACCURACY = 100


def print_training(summary: dict[str, Any], manifest: Manifest) -> None:
    """Print the tables of `gatewise train`, then the check of its promise."""
    test_figures = summary["test"]
    # without a cloud there are no figures of the policy cloud-only
    policies = [policy for policy in ("system", "cloud_only") if test_figures[policy] is not None]
    classes = manifest.classes
    rows: list[tuple[str, ...]] = []
    for policy in policies:
        figures = test_figures[policy]
        figure_texts = [
            _accuracy_text(figures, test_figures["rows"]),
            f"{figures['balanced_accuracy']:.4f}",
        ]
        if "weighted_accuracy" in figures:
            figure_texts.append(f"{figures['weighted_accuracy']:.4f}")
        figure_texts += [f"{figures[score]:.4g}" for score in ("log_loss", "brier_score")]
        offload_rate = figures.get("offload_rate", 1.0)  # cloud-only has none: it always offloads
        rows.append((policy, *figure_texts, f"{figures['cost']:.4g}", f"{offload_rate:.3f}"))
    majority = test_figures["majority"]
    rows.append((f"always {majority['class']}", f"{majority['share']:.4f}"))
    header = ["", "accuracy", "balanced"]
    header += ["weighted accuracy"] * ("weighted_accuracy" in test_figures["system"])
    header += ["log loss", "Brier", "cost", "offload"]
    groups_text = f" of {test_figures['groups']} groups" if "groups" in test_figures else ""
    # the row of the majority class has only an accuracy
    rows = [(*row, *[""] * (len(header) - len(row))) for row in rows]
    print_table(f"on {test_figures['rows']} test rows{groups_text}", header, rows)
    print()
    _print_classes(test_figures, policies, manifest)
    print_frontier(manifest, hull_only=True)
    print(
        f"\n{summary['bundle']}: {byte_size(summary['bytes'])}; the bundle and Python differ in "
        f"{summary['verify']['differing_decisions']} of {summary['verify']['rows']} decisions"
    )
    print_cloud_lines(manifest)
    print(f"{summary['test_rows']}: the test rows, for verify, edge and simulate")
    for remark in summary["remarks"]:
        print(f"note: {remark}")
    for policy, name in (("system", "the system"), ("cloud_only", "the high-cost model")):
        if policy not in policies:
            continue
        if labels := undetected_classes(test_figures[policy]["recall"], classes):
            print(f"never found by {name}, a recall of 0 on test rows: {', '.join(labels)}")
    print()
    for line in summary["promise"]["lines"]:
        print(line)


def _accuracy_text(figures: dict[str, Any], n_rows: int) -> str:
    """Format an accuracy; with few rows its interval comes first."""
    low, high = figures["accuracy_interval"]
    if n_rows >= MIN_ROWS_FOR_ACCURACY or low is None or high is None:
        return f"{figures['accuracy']:.4f}"
    return f"{low:.2f} to {high:.2f} ({figures['accuracy']:.3f})"


def _print_classes(
    test_figures: dict[str, Any], policies: Sequence[str], manifest: Manifest
) -> None:
    """Print recall and precision on test rows, of the classes with the lowest recall."""
    classes_by_recall = sort_by_recall(test_figures["system"]["recall"])
    rows = [
        (
            str(manifest.classes[class_index]),
            test_figures["class_rows"][class_index],
            *(
                format_class_share(test_figures[policy][figure], class_index)
                for figure in ("recall", "precision")
                for policy in policies
            ),
        )
        for class_index in sorted(classes_by_recall[:MAX_CLASSES_SHOWN])
    ]
    header = [f"{figure} {policy}" for figure in ("recall", "precision") for policy in policies]
    has_hidden_classes = len(classes_by_recall) > MAX_CLASSES_SHOWN
    choice_text = f", the {MAX_CLASSES_SHOWN} of lowest recall" if has_hidden_classes else ""
    print_table(f"by class, on test rows{choice_text}", ("class", "rows", *header), rows)
    print()
