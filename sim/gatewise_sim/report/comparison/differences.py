"""Differences between runs, and whether they are more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import FIGURES, ComparedRun

COMPARISON_KIND: Final = "gatewise-comparison"
_ROUNDING: Final = 1e-9  # relative; two ways of summing up are no difference
# Beside `settings`: how a run came about.
_ABOUT: Final = ("kind", "dataset", "method", "engine", "workload", "sampling", "high_cost_model")


class Difference(NamedTuple):
    """The second's figure less the first's, and its 95 % interval."""

    value: float
    low: float | None = None  # None where one of the two has no interval
    high: float | None = None
    beyond: bool | None = None  # whether the interval leaves out 0


def difference(first: Measurement, second: Measurement) -> Difference:
    """Take the difference of two independent estimates, with its interval.

    From the two intervals, which need not be symmetric (Zou and Donner 2008, "Construction of
    confidence limits about effect measures", equation 4). Runs that share rows and seeds are not
    independent: their difference is then surer than the interval says.

    >>> difference(Measurement(0.90, 0.87, 0.93), Measurement(0.95, 0.91, 0.99)).beyond
    False
    >>> difference(Measurement(0.90, 0.87, 0.93), Measurement(0.98, 0.95, 0.99)).beyond
    True
    """
    value = second.value - first.value
    if abs(value) <= _ROUNDING * max(abs(first.value), abs(second.value)):
        value = 0.0
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Difference(value)
    low = value - math.hypot(second.value - second.low, first.high - first.value)
    high = value + math.hypot(second.high - second.value, first.value - first.low)
    return Difference(value, low, high, not low <= 0 <= high)


def compare_runs(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Compare runs with the first of them."""
    first = runs[0]
    return {
        "kind": COMPARISON_KIND,
        "confidence_level": 0.95,
        "runs": [
            {
                "name": run.name,
                "file": run.file,
                "kind": run.report.kind,
                "dataset": run.report.dataset,
                "currency": run.currency,
                "figures": {key: vars(value) for key, value in run.figures.items()},
            }
            for run in runs
        ],
        "differences": [
            {
                "figure": figure.key,
                "run": run.name,
                **difference(first.figures[figure.key], run.figures[figure.key])._asdict(),
            }
            for run in runs[1:]
            for figure in FIGURES
            if figure.key in first.figures
            and figure.key in run.figures
            # Money of two currencies has no difference.
            and not (figure.key.startswith("money") and run.currency != first.currency)
        ],
        "settings": [
            {"name": name, "values": values} for name, values in differing_settings(runs).items()
        ],
    }


def differing_settings(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """Give the settings that are not the same in all runs: name to each run's value.

    A setting that a run does not have is None.
    """
    every = [_settings(run) for run in runs]
    names = list(dict.fromkeys(name for settings in every for name in settings))
    table = {name: [settings.get(name) for settings in every] for name in names}
    return {name: values for name, values in table.items() if any(v != values[0] for v in values)}


def _settings(run: ComparedRun) -> dict[str, Any]:
    document = run.report.to_dict()
    found = {name: document[name] for name in _ABOUT if document.get(name) is not None}
    for part in ("transport", "settings", "calibration", "versions"):
        _flatten(document[part], "" if part == "settings" else f"{part}.", found)
    return found


def _flatten(value: Mapping[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for key, part in value.items():
        if isinstance(part, Mapping):
            _flatten(part, f"{prefix}{key}.", into)
        else:
            into[f"{prefix}{key}"] = part
