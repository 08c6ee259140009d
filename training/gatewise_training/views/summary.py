"""Summary of a fitted system: its active operating point and its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise.console import text_table
from gatewise.formats import byte_size, percent, plural, threshold

STAGE_HEADER = ("stage", "model", "features", "cost if it ends here", "stops at", "answers")
#: Largest number of features that a row of the table lists by name.
MAX_NAMES = 4
#: Largest number of classes that a line lists.
MAX_CLASSES = 6


def summary_text(system: Any) -> str:
    """Write the summary of a fitted system as plain text."""
    table = text_table(STAGE_HEADER, stage_rows(system))
    return "\n".join(
        [headline(system), *(f"  {line}" for line in _list_figures(system)), "", table]
    )


def headline(system: Any) -> str:
    """Describe the kind and size of a system in one line."""
    high_cost_model = system.high_cost_model_
    stages = plural(len(system.stages_), "stage")
    if high_cost_model is not None:
        stages += f" before a high-cost model ({high_cost_name(high_cost_model)})"
    terms = [stages, plural(system.n_features_in_, "feature")]
    if hasattr(system, "classes_"):
        terms.append(f"{len(system.classes_)} classes")
    return f"{type(system).__name__}: {', '.join(terms)}"


def _list_figures(system: Any) -> list[str]:
    """List figures of the active point on validation rows, or on calibration rows if certified."""
    # the rows of the figures
    point = system.operating_point_
    frontier = system.frontier_
    row_set = "validation rows"
    if point.guarantee is not None:
        frontier = system._reference_frontier()
        row_set = plural(point.guarantee["calibration_rows"], "calibration row")
    points = system.operating_points_
    is_classifier = hasattr(system, "classes_")
    figure_name = point.measured if is_classifier else "score"
    has_cloud = system.high_cost_model_ is not None
    reference = "the high-cost model" if has_cloud else "the costliest model"
    # the figures of the point and the reference
    if point.validation_groups is not None:
        row_set += f" of {point.validation_groups} groups"
    lines = [
        f"operating point {points.index(point)} of {len(points)}, on {row_set}:",
        f"{figure_name} {point.accuracy:.4f}, {reference} {frontier.reference_accuracy:.4f}",
    ]
    if system.choice_:
        lines.insert(1, f"chosen as {system.choice_}")
    if point.weighted_accuracy is not None:
        weighted_text = f"weighted accuracy {point.weighted_accuracy:.4f}"
        if frontier.reference_weighted_accuracy is not None:
            weighted_text += f", {reference} {frontier.reference_weighted_accuracy:.4f}"
        lines.append(weighted_text)
    scores = {
        "balanced accuracy": point.balanced_accuracy,
        "log loss": point.log_loss,
        "Brier score": point.brier_score,
    }
    known_scores = [f"{name} {score:.4f}" for name, score in scores.items() if score is not None]
    if known_scores:
        lines.append(", ".join(known_scores))
    if point.recall is not None:
        lines.append(f"recall ({reference}): {_write_recalls(point, frontier)}")
    if point.validation_groups is not None and point.guarantee is None:
        answers_all = point.cost >= frontier.points[-1].cost
        if system.high_cost_model_ is not None:
            answers_all = point.offload_rate == 1.0
        lines.append(
            _describe_group_losses(
                point, frontier, f"{reference} answers all" if answers_all else ""
            )
        )
    return lines + _list_cost_and_bounds(system)


def _list_cost_and_bounds(system: Any) -> list[str]:
    """List the cost of the active point and the bounds that it keeps."""
    point = system.operating_point_
    cost_text = f"cost {point.cost:.4g} per instance"
    if system.high_cost_model_ is not None:
        cost_text += f", {percent(point.offload_rate)} offloaded"
    lines = [cost_text]
    max_bytes = getattr(system, "max_bytes_", None)
    if max_bytes is not None:
        lines.append(f"stages of {point.bytes} bytes as tables of C, at most {max_bytes}")
    max_cost = getattr(system, "max_instance_cost_", None)
    if max_cost is not None:
        lines.append(f"an instance costs {point.max_cost:.4g} at most, {max_cost:.4g} allowed")
    bounds = getattr(system, "class_bounds_", None)
    if bounds:
        lines.append(f"keeps {bounds.as_text()}")
    if point.guarantee is not None:
        lines.append(_describe_guarantee(point))
    return lines


def _describe_guarantee(point: Any) -> str:
    guarantee = point.guarantee
    bounds = [f"{guarantee['kind']}={guarantee['bound']:g}"]
    bounds += [
        f"{key}={bound:g}" for key, bound in guarantee.items() if key.startswith(("min_", "max_"))
    ]
    groups = guarantee.get("calibration_groups")
    group_text = "" if groups is None else f" ({groups} calibration groups)"
    if guarantee["kind"] == "max_loss" and point.offload_rate == 1.0:
        group_text += ", since the high-cost model answers all: more calibration rows promise more"
    return f"guaranteed at {guarantee['confidence']:g}: {', '.join(bounds)}{group_text}"


def _describe_group_losses(point: Any, frontier: Any, fallback_text: str) -> str:
    """Describe the largest loss of new groups.

    `fallback_text` describes the policy if groups are too few for a promise.
    """
    loss = frontier.reference_effective_accuracy - point.effective_accuracy + point.accuracy_error
    if loss > 0 or not fallback_text:
        return f"new groups lose {max(loss, 0.0):.4f} at most, by these groups (confidence 0.8)"
    return (
        f"{point.validation_groups} groups are too few to promise as small a loss in new ones at "
        f"less cost: {fallback_text}"
    )


def _write_recalls(point: Any, frontier: Any) -> str:
    """Write the recalls of the classes and of the reference, or the lowest ones of many classes."""
    recalls = point.recall
    references = frontier.reference_recall or (None,) * len(recalls)
    classes_by_recall = sorted(range(len(recalls)), key=lambda index: recalls[index] or 0.0)
    recall_texts = [_format_share(share) for share in recalls]
    reference_texts = [_format_share(share) for share in references]
    texts = [
        f"{frontier.classes[index]} {recall_texts[index]} ({reference_texts[index]})"
        for index in sorted(classes_by_recall[:MAX_CLASSES]) + classes_by_recall[MAX_CLASSES:]
    ]
    return join_first(texts, MAX_CLASSES)


def join_first(texts: Sequence[str], max_texts: int) -> str:
    """Join the first texts by commas and count the others.

    >>> join_first(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    n_others = len(texts) - max_texts
    return ", ".join(texts[:max_texts]) + f" and {n_others} more" * (n_others > 0)


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def stage_rows(system: Any) -> list[Sequence[str]]:
    """List the stages and the high-cost model as rows of a table."""
    point = system.operating_point_
    high_cost_model = system.high_cost_model_
    names = system.feature_names_
    exit_shares = point.exit_shares
    costs = system._exit_limits(system.stages_)
    has_upper_bounds = False  # whether costs are upper bounds, because stages acquire by node
    rows: list[Sequence[str]] = []
    for stage_number, stage in enumerate(system.stages_):
        has_upper_bounds = has_upper_bounds or stage.acquisition == "node"
        feature_list = [names[k] for k in stage.features]
        features_text = join_first(feature_labels(system, feature_list), MAX_NAMES)
        rows.append(
            (
                f"{stage_number}",
                f"{stage.model_name}, {byte_size(stage.nbytes)}",
                f"{len(feature_list)}: {features_text}",
                "up to " * has_upper_bounds + f"{costs[stage_number]:.4g}",
                _format_threshold(system, stage_number),
                percent(exit_shares[stage_number]) if exit_shares else "",
            )
        )
    if high_cost_model is not None:
        rows.append(
            (
                "cloud",
                high_cost_name(high_cost_model),
                f"{len(high_cost_model.features)}",
                "up to " * has_upper_bounds + f"{costs[-1]:.4g}",
                "",
                percent(exit_shares[-1]) if exit_shares else percent(point.offload_rate),
            )
        )
    return rows


def _format_threshold(system: Any, stage_number: int) -> str:
    """Write the threshold of stage `stage_number`."""
    if system.high_cost_model_ is None and stage_number == len(system.stages_) - 1:
        return "always"
    return threshold(system.operating_point_.thresholds[stage_number])


def feature_labels(system: Any, features: Sequence[str]) -> Sequence[str]:
    """Get the names of features or, for features of a signal, the labels of their blocks."""
    if hasattr(system, "signal_input_"):
        labels: list[str] = system.signal_input_.block_labels(features)
        return labels
    return features


def high_cost_name(model: Any) -> str:
    """Name a high-cost model: the class of a given classifier, or the kind of another model."""
    is_given = model.kind == "given" and model.estimator is not None
    return type(model.estimator).__name__ if is_given else str(model.kind)
