"""What came of a simulation, for people: a table, a sentence, and what one must know about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatewise.console import table
from gatewise_sim.report import words
from gatewise_sim.report.simulation_words import answer, caveats

__all__ = ["show", "summary"]


def summary(report: Mapping[str, Any]) -> str:
    """Say what came of it in one sentence, as the page does."""
    return "".join(answer(report))


def show(report: Mapping[str, Any]) -> None:
    """Print the legs as a table, the answer in a sentence, and what one must know about it."""
    legs = report["legs"]

    def row(name: str, get: Any, form: Any) -> list[str]:
        return [name, *(form(get(leg)) for leg in legs)]

    def value(*path: str) -> Any:
        def get(leg: Mapping[str, Any]) -> float | None:
            found: Any = leg
            for key in path:
                found = None if found is None else found.get(key)
            number: float | None = found["value"] if isinstance(found, Mapping) else found
            return number

        return get

    def count(*routes: str) -> Any:
        return lambda leg: sum(leg["answers"][route] for route in routes)

    rows = [
        row("accuracy", value("accuracy"), words.percent),
        row("offloaded", value("offload_rate"), words.percent),
        row("cost per instance", value("cost"), words.number),
        row("feature cost", value("feature_cost"), words.number),
        *(row(f"answer within, {q[1:]} %", value("latency_ms", q), words.millis)
          for q in ("p50", "p95", "p99")),
        row("bytes per instance",
            lambda leg: leg["bytes"]["up"]["value"] + leg["bytes"]["down"]["value"], words.number),
        row("joules per device and day", value("joules_per_device_day"), words.number),
        row("battery, days", value("battery_days"), words.number),
        row("answered by the edge", count("edge"), words.number),
        row("answered by the cloud", count("cloud"), words.number),
        row("fallbacks", count("fallback"), words.number),
        row("errors", count("error"), words.number),
        row("lost", count("lost"), words.number),
        row("workers busy", value("utilisation"), words.percent),
        *([row(f"{report['money']['currency']} a month", value("money", "total"), words.number)]
          if report["money"] else []),
    ]  # fmt: skip
    kept = [r for r in rows if r[0] not in ("battery, days", "errors", "lost") or _says(r)]
    print(f"{report['method']}: {report['instances']:,} instances")
    table("", ["", *(leg["name"] for leg in legs)], kept)
    print("\n".join(["", summary(report), *caveats(report)]))


def _says(row: list[str]) -> bool:
    return any(cell not in ("n/a", "0") for cell in row[1:])
