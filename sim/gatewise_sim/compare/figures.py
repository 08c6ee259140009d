"""The figures that runs are compared by, read from a report of the demo or of a simulation.

Those of a simulation come with their 95 % intervals. Of the demo's, accuracy and offload rate are
shares of its instances and get Wilson's interval (Wilson 1927); its other figures have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gatewise.errors import InputError
from gatewise_sim.fleet.money import MONTH
from gatewise_sim.report import words

__all__ = ["FIGURES", "KINDS", "Figure", "Measured", "measured"]

DEMO: Final = "gatewise-demo"
SIMULATION: Final = "gatewise-simulation"
KINDS: Final = (DEMO, SIMULATION)
_Z: Final = 1.959963984540054  # of 95 %


class Measured(NamedTuple):
    """A figure, and its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Figure:
    """Something that every run has.

    Attributes
    ----------
    key : str
    name : str
        For people.
    form : callable
        Writes a value.
    better : int
        1 if more is better, -1 if less is, 0 if it depends.
    """

    key: str
    name: str
    form: Callable[[float | None], str]
    better: int = -1


def _count(value: float | None) -> str:
    """Three significant digits, also of what is small."""
    return words.number(value)


def _small_share(value: float | None) -> str:
    """A share that is often far below a percent."""
    if value is None or value == 0 or value >= 0.001:
        return words.percent(value)
    return f"{100 * value:.1g} %"


FIGURES: Final = (
    Figure("accuracy", "accuracy", lambda v: words.percent(v, 2), 1),
    Figure("accuracy_edge_only", "accuracy, all edge", lambda v: words.percent(v, 2), 1),
    Figure("accuracy_cloud_only", "accuracy, all cloud", lambda v: words.percent(v, 2), 1),
    Figure("offload_rate", "offload rate", lambda v: words.percent(v, 2), 0),
    Figure("cost", "cost per instance", _count),
    Figure("feature_cost", "feature cost per instance", _count),
    Figure("cost_reduction", "feature cost saved", words.percent, 1),
    Figure("bytes", "bytes per instance", _count),
    Figure("p50", "half answered within", words.millis),
    Figure("p95", "95 % answered within", words.millis),
    Figure("p99", "99 % answered within", words.millis),
    Figure("offloaded_p95", "95 % of the offloaded within", words.millis),
    Figure("edge", "answered by edge", _small_share, 0),
    Figure("cloud", "answered by cloud", _small_share, 0),
    Figure("fallback", "fallback", _small_share),
    Figure("late", "late, not used", _small_share),
    Figure("lost", "lost", _small_share),
    Figure("money", "money a month", _count),
    Figure("money_per_million", "money per million instances", _count),
    Figure("joules", "joules per instance", _count),
    Figure("battery_days", "battery, in days", _count, 1),
    Figure("utilisation", "workers' time used", words.percent, 0),
)
"""In the order in which they are shown."""


def measured(report: Mapping[str, Any], where: str) -> dict[str, Measured]:
    """Read a report's figures.

    Parameters
    ----------
    report : mapping
        Of kind ``gatewise-demo`` or ``gatewise-simulation``.
    where : str
        Its file, for errors.

    Returns
    -------
    dict of str to Measured
        By the keys of :data:`FIGURES`; what the run did not measure is left out.

    Raises
    ------
    InputError
        If a key is missing or is no number; the message names file and key.
    """
    kind = report.get("kind")
    if kind not in KINDS:
        raise InputError(f"{where}: not a report: kind is {kind!r}, not one of {', '.join(KINDS)}")
    reader = _Reader(report, where)
    instances = reader.number("instances")
    if instances is None or not instances > 0:
        raise InputError(f"{where}: instances is {instances}; there is nothing to compare")
    found: dict[str, Measured | float | None] = {
        "accuracy": reader.number("accuracy", "system"),
        "accuracy_edge_only": reader.optional("accuracy", "edge_only"),
        "accuracy_cloud_only": reader.optional("accuracy", "cloud_only"),
        "offload_rate": reader.number("offload_rate"),
        "feature_cost": reader.number("feature_cost", "system"),
        "cost_reduction": reader.number("cost_reduction"),
        "bytes": _per(reader.number("bytes", "system"), instances),
        **{q: reader.number("latency_ms", "system", q) for q in ("p50", "p95", "p99")},
        **{
            what: _per(reader.number("answers", what), instances)
            for what in ("edge", "cloud", "fallback", "late", "lost")
        },
    }
    if kind == DEMO:
        found["cost"] = reader.number("cost", "full", "system")
        for key in ("accuracy", "accuracy_edge_only", "accuracy_cloud_only", "offload_rate"):
            found[key] = _wilson(found[key], instances)
    else:
        found |= _of_simulation(reader, instances)
    return {
        figure.key: value if isinstance(value, Measured) else Measured(value)
        for figure in FIGURES
        if (value := found.get(figure.key)) is not None
    }


def _of_simulation(reader: _Reader, instances: float) -> dict[str, Measured | float | None]:
    """Estimates of the system's leg, with their intervals, and what else it has."""
    legs = reader.report.get("legs")
    if not isinstance(legs, list):
        raise InputError(f"{reader.where}: no list at legs")
    named = {leg.get("key"): _Reader(leg, reader.where) for leg in legs if isinstance(leg, dict)}
    if "system" not in named:
        raise InputError(f"{reader.where}: no leg 'system' among legs")
    leg = named["system"]
    found: dict[str, Measured | float | None] = {
        "accuracy": leg.estimate("accuracy"),
        "offload_rate": leg.estimate("offload_rate"),
        "cost": leg.estimate("cost"),
        "feature_cost": leg.estimate("feature_cost"),
        "utilisation": leg.optional("utilisation"),
        "battery_days": leg.optional("battery_days"),
        **{q: leg.estimate("latency_ms", q) for q in ("p50", "p95", "p99", "offloaded_p95")},
    }
    for key in ("edge_only", "cloud_only"):
        if key in named:
            found[f"accuracy_{key}"] = named[key].estimate("accuracy")
    up, down = leg.estimate("bytes", "up"), leg.estimate("bytes", "down")
    if up is not None and down is not None:
        found["bytes"] = up.value + down.value
    joules = [leg.estimate("joules", part) for part in ("radio", "features", "stages")]
    found["joules"] = sum(part.value for part in joules if part is not None)
    total = leg.optional("money", "total")
    if total is not None:
        found["money"] = total
        seconds = reader.optional("settings", "seconds")
        if seconds is not None and seconds > 0:
            found["money_per_million"] = 1e6 * total / (instances * MONTH / seconds)
    return {key: value for key, value in found.items() if value is not None}


class _Reader:
    """Takes numbers out of a report, and says where there is none."""

    def __init__(self, report: Mapping[str, Any], where: str) -> None:
        self.report = report
        self.where = where

    def number(self, *path: str) -> float | None:
        """Give a number, or None where the report says null; a key must be there."""
        value: Any = self.report
        for i, key in enumerate(path):
            if not isinstance(value, Mapping) or key not in value:
                raise InputError(f"{self.where}: no {'.'.join(path[: i + 1])} in it")
            value = value[key]
        return self._checked(value, path)

    def optional(self, *path: str) -> float | None:
        """Give a number, or None where there is nothing."""
        value: Any = self.report
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return self._checked(value, path)

    def estimate(self, *path: str) -> Measured | None:
        """Give a number with its interval: ``{value, low, high}``; a plain number has none."""
        value: Any = self.report
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        if not isinstance(value, Mapping):
            number = self._checked(value, path)
            return None if number is None else Measured(number)
        parts = [self.optional(*path, part) for part in ("value", "low", "high")]
        if parts[0] is None:
            return None
        if parts[1] is None or parts[2] is None:
            return Measured(parts[0])
        if not parts[1] <= parts[0] <= parts[2]:
            raise InputError(f"{self.where}: {'.'.join(path)} lies outside of its own interval")
        return Measured(parts[0], parts[1], parts[2])

    def _checked(self, value: Any, path: tuple[str, ...]) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.where}: {'.'.join(path)} is {value!r:.40}, not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InputError(f"{self.where}: {'.'.join(path)} is not a finite number")
        return number


def _per(total: float | None, instances: float) -> float | None:
    return None if total is None else total / instances


def _wilson(share: Measured | float | None, n: float) -> Measured | None:
    """Wilson's score interval of a share of `n` instances, 95 %."""
    if share is None:
        return None
    p = share.value if isinstance(share, Measured) else share
    if not 0 <= p <= 1:
        return Measured(p)
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    # At the ends rounding may leave the share a bit outside.
    return Measured(p, min(max(0.0, middle - half), p), max(min(1.0, middle + half), p))
