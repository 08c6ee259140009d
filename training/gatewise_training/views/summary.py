"""Summary of a fitted system: the active operating point and its stages, as text and plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise.console import html_table, text_table
from gatewise.errors import InputError
from gatewise.formats import byte_size, percent, plural, threshold

STAGE_HEADER = ("stage", "model", "features", "cost if it ends here", "stops at", "answers")
DEVICE_COLOUR = "#3b6fb6"
CLOUD_COLOUR = "#c5703b"
MOST_NAMED = 4
MOST_CLASSES = 6


def summary_text(system: Any) -> str:
    """Write the summary of a fitted system as plain text."""
    table = text_table(STAGE_HEADER, stage_rows(system))
    return "\n".join([headline(system), *(f"  {line}" for line in _lines(system)), "", table])


def summary_html(system: Any) -> str:
    """Write the summary of a fitted system as HTML for a notebook."""
    return html_table(headline(system), STAGE_HEADER, stage_rows(system), _lines(system))


def headline(system: Any) -> str:
    """Write the system's kind and size in one line."""
    f0 = system.high_cost_model_
    stages = plural(len(system.stages_), "stage")
    if f0 is not None:
        stages += f" before a high-cost model ({high_cost_name(f0)})"
    terms = [stages, plural(system.n_features_in_, "feature")]
    if hasattr(system, "classes_"):
        terms.append(f"{len(system.classes_)} classes")
    return f"{type(system).__name__}: {', '.join(terms)}"


def _lines(system: Any) -> list[str]:
    """List figures of the active point on validation rows or, certified, on calibration rows."""
    # the rows that the figures are measured on
    point, frontier = system.operating_point_, system.frontier_
    rows = "validation rows"
    if point.guarantee is not None:
        frontier = system._reference_frontier()
        rows = plural(point.guarantee["calibration_rows"], "calibration row")
    points = system.operating_points_
    classified = hasattr(system, "classes_")
    merit = point.measured if classified else "score"
    with_f0 = system.high_cost_model_ is not None
    reference = "the high-cost model" if with_f0 else "the costliest model"
    # the point, and how good it is beside the reference
    lines = [
        f"operating point {points.index(point)} of {len(points)}, on {rows}"
        + ("" if point.validation_groups is None else f" of {point.validation_groups} groups")
        + ":",
        f"{merit} {point.accuracy:.4f}, {reference} {frontier.reference_accuracy:.4f}",
    ]
    if system.choice_:
        lines.insert(1, f"chosen as {system.choice_}")
    if point.weighted_accuracy is not None:
        weighted = frontier.reference_weighted_accuracy
        compared = "" if weighted is None else f", {reference} {weighted:.4f}"
        lines.append(f"weighted accuracy {point.weighted_accuracy:.4f}{compared}")
    scores = {
        "balanced accuracy": point.balanced_accuracy,
        "log loss": point.log_loss,
        "Brier score": point.brier_score,
    }
    known_scores = [f"{name} {value:.4f}" for name, value in scores.items() if value is not None]
    if known_scores:
        lines.append(", ".join(known_scores))
    if point.recall is not None:
        lines.append(f"recall ({reference}): {_recalls(point, frontier)}")
    if point.validation_groups is not None and point.guarantee is None:
        alone = point.cost >= frontier.points[-1].cost
        if system.high_cost_model_ is not None:
            alone = point.offload_rate == 1.0
        lines.append(_group_losses(point, frontier, f"{reference} answers all" if alone else ""))
    # its cost, and the bounds that it keeps
    cost = f"cost {point.cost:.4g} per instance"
    if system.high_cost_model_ is not None:
        cost += f", {percent(point.offload_rate)} offloaded"
    lines.append(cost)
    max_bytes = getattr(system, "max_bytes_", None)
    if max_bytes is not None:
        lines.append(f"stages of {point.bytes} bytes as tables of C, at most {max_bytes}")
    max_cost = getattr(system, "max_instance_cost_", None)
    if max_cost is not None:
        lines.append(f"an instance costs {point.max_cost:.4g} at most, {max_cost:.4g} allowed")
    bounds = getattr(system, "class_bounds_", None)
    if bounds:
        lines.append(f"keeps {bounds.text()}")
    if point.guarantee is not None:
        lines.append(_guarantee(point))
    return lines


def _guarantee(point: Any) -> str:
    """Write the bounds of a guarantee."""
    guarantee = point.guarantee
    bounds = [f"{guarantee['kind']}={guarantee['bound']:g}"]
    bounds += [f"{k}={v:g}" for k, v in guarantee.items() if k.startswith(("min_", "max_"))]
    groups = guarantee.get("calibration_groups")
    remark = "" if groups is None else f" ({groups} calibration groups)"
    if guarantee["kind"] == "max_loss" and point.offload_rate == 1.0:
        remark += ", since the high-cost model answers all: more calibration rows promise more"
    return f"guaranteed at {guarantee['confidence']:g}: {', '.join(bounds)}{remark}"


def _group_losses(point: Any, frontier: Any, otherwise: str) -> str:
    """Write the largest loss of new groups, or that groups are too few for one (`otherwise`)."""
    loss = frontier.reference_merit - point.merit + point.accuracy_error
    if loss > 0 or not otherwise:
        return f"new groups lose {max(loss, 0.0):.4f} at most, by these groups (confidence 0.8)"
    return (
        f"{point.validation_groups} groups are too few to promise as small a loss in new ones at "
        f"less cost: {otherwise}"
    )


def _recalls(point: Any, frontier: Any) -> str:
    """Write recalls by class and the reference's; the lowest ones if there are many classes."""
    reference = frontier.reference_recall or (None,) * len(point.recall)
    order = sorted(range(len(point.recall)), key=lambda c: point.recall[c] or 0.0)
    texts = [
        f"{frontier.classes[c]} {_share(point.recall[c])} ({_share(reference[c])})"
        for c in sorted(order[:MOST_CLASSES])
    ]
    more = len(point.recall) - len(texts)
    return ", ".join(texts) + f" and {more} more" * (more > 0)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def stage_rows(system: Any) -> list[Sequence[str]]:
    """List the stages and the high-cost model, one row per stage."""
    point = system.operating_point_
    f0 = system.high_cost_model_
    names = system.feature_names_
    shares = point.exit_shares
    costs = system._exit_limits(system.stages_)
    has_upper_bounds = False  # of costs, where stages acquire node by node
    rows: list[Sequence[str]] = []
    for s, stage in enumerate(system.stages_):
        has_upper_bounds = has_upper_bounds or stage.acquisition == "node"
        used = [names[k] for k in stage.features]
        words = feature_labels(system, used)
        more = len(words) - MOST_NAMED
        listed = ", ".join(words[:MOST_NAMED]) + f" and {more} more" * (more > 0)
        rows.append(
            (
                f"{s}",
                f"{stage.model_name}, {byte_size(stage.nbytes)}",
                f"{len(used)}: {listed}",
                "up to " * has_upper_bounds + f"{costs[s]:.4g}",
                _limit(system, s),
                percent(shares[s]) if shares else "",
            )
        )
    if f0 is not None:
        rows.append(
            (
                "cloud",
                high_cost_name(f0),
                f"{len(f0.features)}",
                "up to " * has_upper_bounds + f"{costs[-1]:.4g}",
                "",
                percent(shares[-1]) if shares else percent(point.offload_rate),
            )
        )
    return rows


def _limit(system: Any, s: int, digits: int = 4) -> str:
    """Write the threshold of stage `s`."""
    if system.high_cost_model_ is None and s == len(system.stages_) - 1:
        return "always"
    return threshold(system.operating_point_.thresholds[s], digits)


def draw_stages(system: Any, ax: Any) -> Any:
    """Draw bars of the shares that the stages and the high-cost model answer, on `ax`."""
    stages = system.stages_
    point = system.operating_point_
    f0 = system.high_cost_model_
    if not point.exit_shares:
        raise InputError(f"{type(system).__name__} does not say what its stages answer")
    names = []
    colours = [DEVICE_COLOUR] * len(stages)
    for s, stage in enumerate(stages):
        limit = _limit(system, s, 3)
        stop = f"{limit} stops" if limit in ("never", "always") else f"stops from {limit}"
        features = plural(len(stage.features), "feature")
        names.append(f"stage {s}: {features}\n{stage.model_name}, {stop}")
    if f0 is not None:
        features = plural(len(f0.features), "feature")
        names.append(f"high-cost model: {features}\n{high_cost_name(f0)}")
        colours.append(CLOUD_COLOUR)
    costs = system._exit_limits(stages)
    widths = [100 * share for share in point.exit_shares[: len(names)]]
    ax.barh(range(len(names)), widths, color=colours, height=0.6)
    for number, width in enumerate(widths):
        text = f"{percent(width / 100)}, cost {costs[number]:.3g}"
        ax.text(width + 1, number, text, va="center", fontsize=9)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 128)  # room for the text to the right of a full bar
    ax.set_xticks(range(0, 101, 20))
    ax.set_xlabel("instances answered, % of validation rows")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def feature_labels(system: Any, features: Sequence[str]) -> Sequence[str]:
    """Get the features' names or, for features of a signal, labels of their blocks."""
    if hasattr(system, "signal_input_"):
        labels: list[str] = system.signal_input_.labels(features)
        return labels
    return features


def high_cost_name(f0: Any) -> str:
    """Name a high-cost model: a given classifier by its class, others by their kind."""
    is_given = f0.kind == "given" and f0.estimator is not None
    return type(f0.estimator).__name__ if is_given else str(f0.kind)
