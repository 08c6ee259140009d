"""The figures that runs are compared by, and whether their differences are more than chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from gatewise.errors import InputError
from gatewise.formats import Format, joules, millis, number, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.fleet.money import MONTH
from gatewise_sim.report.findings import bounds
from gatewise_sim.report.model import Report

COMPARISON_KIND: Final = "gatewise-comparison"
_ROUNDING: Final = 1e-9  # relative; two ways of summing up are no difference
# Beside `settings`: how a run came about.
_ABOUT: Final = ("kind", "dataset", "method", "engine", "workload", "sampling", "high_cost_model")


@dataclass(frozen=True)
class ComparedFigure:
    """A figure that runs have."""

    key: str
    name: str
    form: Format
    get: Callable[[Report], Measurement | float | None]  # None where it was not measured
    better: int = -1  # 1 if more is better, -1 if less is, 0 if it depends

    def text(self, found: Mapping[str, Any] | None) -> str:
        """Write a figure of a document; a dash where there is none."""
        return "-" if found is None else self.form(found["value"])

    def interval(self, found: Mapping[str, Any] | None) -> str:
        """Write its interval; empty where there is none."""
        return bounds(None if found is None else Measurement(**found), self.form)


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A run that is compared with others."""

    name: str  # short, and another one for each run
    file: str
    report: Report
    figures: dict[str, Measurement]

    @property
    def currency(self) -> str | None:
        """Of its money."""
        return None if self.report.money is None else self.report.money.currency


def _per_million(report: Report) -> float | None:
    seconds = report.settings.get("seconds")
    if report.money is None or not seconds:
        return None
    return float(1e6 * report.money.total / (report.instances * MONTH / seconds))


def _accuracy(key: str, name: str) -> ComparedFigure:
    def get(report: Report) -> Measurement | None:
        policy = report.policy(key)
        return None if policy is None else policy.accuracy

    return ComparedFigure(f"accuracy_{key}", f"accuracy, {name}", _fine, get, 1)


def _latency(quantile: str, name: str) -> ComparedFigure:
    return ComparedFigure(quantile, name, millis, lambda r: r.system.latency_ms.get(quantile))


def _share(route: str, name: str, better: int = -1) -> ComparedFigure:
    def get(report: Report) -> float:
        return float(getattr(report.answers, route) / report.instances)

    return ComparedFigure(route, name, percent, get, better)


_fine: Final[Format] = partial(percent, digits=2)

FIGURES: Final = (
    ComparedFigure("accuracy", "accuracy", _fine, lambda r: r.system.accuracy, 1),
    _accuracy("edge_only", "all edge"),
    _accuracy("cloud_only", "all cloud"),
    ComparedFigure("offload_rate", "offload rate", _fine, lambda r: r.system.offload_rate, 0),
    ComparedFigure("cost", "cost per instance", number, lambda r: r.system.cost),
    ComparedFigure(
        "feature_cost", "feature cost per instance", number, lambda r: r.system.feature_cost
    ),
    ComparedFigure("cost_reduction", "feature cost saved", percent, lambda r: r.cost_reduction, 1),
    ComparedFigure("bytes", "bytes per instance", number, lambda r: r.system.bytes.total),
    _latency("p50", "half answered within"),
    _latency("p95", "95 % answered within"),
    _latency("p99", "99 % answered within"),
    _latency("offloaded_p95", "95 % of the offloaded within"),
    _share("edge", "answered by edge", 0),
    _share("cloud", "answered by cloud", 0),
    _share("fallback", "fallback"),
    _share("late", "late, not used"),
    _share("lost", "lost"),
    ComparedFigure("money", "money a month", number, lambda r: r.money.total if r.money else None),
    ComparedFigure("money_per_million", "money per million instances", number, _per_million),
    ComparedFigure("joules", "energy per instance", joules, lambda r: r.system.joules.total),
    ComparedFigure("battery_days", "battery, in days", number, lambda r: r.system.battery_days, 1),
    ComparedFigure("utilisation", "workers' time used", percent, lambda r: r.system.utilisation, 0),
)
"""In the order in which they are shown."""

BY_KEY: Final = {figure.key: figure for figure in FIGURES}


def figures_of_report(report: Report) -> dict[str, Measurement]:
    """Take the figures of a run by the keys of :data:`FIGURES`; those not measured are left out."""
    if report.instances < 1:
        raise InputError(f"instances is {report.instances}; there is nothing to compare")
    found = {figure.key: figure.get(report) for figure in FIGURES}
    return {
        key: figure if isinstance(figure, Measurement) else Measurement(figure)
        for key, figure in found.items()
        if figure is not None
    }


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
