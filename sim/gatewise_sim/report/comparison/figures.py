"""The figures that runs are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gatewise.errors import InputError
from gatewise.formats import Format, interval, millis, number, percent
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.fleet.money import MONTH
from gatewise_sim.report.model import Report


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
        if found is None or found["low"] is None or found["high"] is None:
            return ""
        return interval(found["low"], found["high"], self.form)


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
    ComparedFigure("joules", "joules per instance", number, lambda r: r.system.joules.total),
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
