"""Names and texts of cells that the pages and plots of the comparison share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OURS = "staged"

#: Maps a bound of bytes to its rule in :mod:`benchmarks.comparison.summary`.
BYTE_RULES = {
    "at most 1 MB": "within_1_1024_kb",
    "at most 64 KB": "within_1_64_kb",
    "at most 8 KB": "within_1_8_kb",
}


def metric_name(problem_figures: Mapping[str, Any]) -> str:
    """Name the metric; older figures do not name theirs, which is accuracy."""
    return str(problem_figures.get("metric", "accuracy"))


def mean_and_error_text(mean_and_error: Mapping[str, float | None], digits: int) -> str:
    """Write a mean and its standard error, if there is one, in percent."""
    mean, error = mean_and_error["mean"], mean_and_error["error"]
    assert mean is not None
    mean_text = f"{100 * mean:.{digits}f}"
    return mean_text if error is None else f"{mean_text} ± {100 * error:.{digits}f}"


def cut_and_loss_text(rule_figures: Mapping[str, Any]) -> str:
    """Write the mean cut of the cost in percent, and the mean loss of accuracy in points."""
    cut, loss = rule_figures["cut"]["mean"], rule_figures["loss"]["mean"]
    return f"{100 * cut:.1f} / {100 * loss:.2f}"
