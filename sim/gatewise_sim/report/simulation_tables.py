"""The numbers behind the drawings of a simulation's page, as tables for its template.

Each function gives template variables: ``NAME_columns`` and ``NAME_rows``. A cell is a text, or a
text and a smaller one below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import shape
from gatewise_sim.report.drawings.times import TimeScale
from gatewise_sim.report.simulation_words import leg, priced
from gatewise_sim.report.svg import tag

__all__ = [
    "answered",
    "classes",
    "details",
    "frontier",
    "latency",
    "legs",
    "timeline",
    "twin",
    "workers",
]

_QUANTILES: Final = {"p50": "half within", "p95": "95 %", "p99": "99 %"}
_TIMES: Final = {
    "p50": "half answered within",
    "p95": "95 %",
    "p99": "99 %",
    "offloaded_p50": "offloaded: half",
    "offloaded_p95": "offloaded: 95 %",
}
_ROUTES: Final = ("edge", "cloud", "fallback", "error", "late", "retries", "lost")
_REASONS: Final = {
    "stopped": "a stage was sure enough",
    "edge-only": "the cloud is never asked",
    "offloaded": "the cloud answered",
    "cloud-only": "the cloud is always asked",
    "value": "a value is missing",
    "link-down": "fallback: no connection",
    "full": "fallback: too many requests out",
    "breaker-open": "fallback: the cloud had been silent",
    "deadline": "fallback: no time left to ask",
    "timeout": "fallback: no response in time",
    "cloud:busy": "fallback: the workers were busy",
}

_Report = Mapping[str, Any]
_Table = dict[str, Any]
Cell = str | tuple[str, str]


def _named(name: str, columns: list[str], rows: list[list[Cell]]) -> _Table:
    return {f"{name}_columns": columns, f"{name}_rows": rows}


def _with_ends(figure: Mapping[str, float] | None, form: Callable[[float | None], str]) -> Cell:
    if figure is None:
        return "n/a"
    text = words.ends(figure, form)
    return (form(figure["value"]), text) if text else form(figure["value"])


def frontier(report: _Report) -> _Table:
    """Operating points, and what each leg came to."""
    active = report["frontier"]["active"]
    rows: list[list[Cell]] = [
        [entry["name"], _with_ends(entry["cost"], words.number),
         _with_ends(entry["accuracy"], words.percent),
         _with_ends(entry["offload_rate"], words.percent)]
        for entry in report["legs"]
    ]  # fmt: skip
    rows += [
        ["in force" if p == active else "operating point", words.number(p["cost"]),
         words.percent(p["accuracy"]), words.percent(p["offload_rate"])]
        for p in report["frontier"]["points"]
    ]  # fmt: skip
    return _named("frontier", ["", "cost", "accuracy", "offloaded"], rows)


def latency(report: _Report) -> _Table:
    """Quantiles of all legs, and of Gatewise's offloaded instances."""
    rows: list[list[Cell]] = []
    for entry in report["legs"]:
        for prefix, name in (("", entry["name"]), ("offloaded_", f"{entry['name']}, offloaded")):
            if prefix and entry["key"] != "system":
                continue
            figures = [entry["latency_ms"].get(prefix + q) for q in _QUANTILES]
            if any(f is not None for f in figures):
                rows.append([name, *(_with_ends(f, words.millis) for f in figures)])
    return _named("latency", ["", *_QUANTILES.values()], rows)


def timeline(report: _Report, scale: TimeScale) -> _Table:
    """Bin by bin."""
    rows: list[list[Cell]] = [
        [scale.span(b["begin"], b["end"]),
         *(words.count(b[route]) for route in ("edge", "cloud", "fallback", "error")),
         words.percent(b["accuracy"]), words.percent(b["edge_accuracy"]),
         words.millis(b["p50_ms"]), words.millis(b["p95_ms"])]
        for b in report["timeline"]
    ]  # fmt: skip
    columns = ["", "edge", "cloud", "fallback", "error", "accuracy", "device alone",
               "offloaded: half", "95 %"]  # fmt: skip
    return _named("timeline", columns, rows)


def classes(report: _Report) -> _Table:
    """All classes, those that never came too."""
    rows: list[list[Cell]] = [
        [str(c["label"]), words.count(c["instances"]), words.percent(c["offload_rate"]),
         words.percent(c["accuracy"]), words.percent(c["edge_accuracy"])]
        for c in report["classes"]
    ]  # fmt: skip
    return _named("classes", ["", "instances", "offloaded", "accuracy", "device alone"], rows)


def answered(report: _Report) -> _Table:
    """Who answered, leg by leg; and Gatewise's reasons."""
    shown = [
        r for r in _ROUTES
        if r in ("edge", "cloud", "fallback", "lost")
        or any(entry["answers"].get(r) for entry in report["legs"])
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [entry["name"], *(words.count(entry["answers"].get(r, 0)) for r in shown)]
        for entry in report["legs"]
    ]
    system = leg(report, "system") or {}
    reasons = sorted((system.get("reasons") or {}).items(), key=lambda item: -item[1])
    total = sum(n for _, n in reasons)
    told = [
        [_REASONS.get(reason, reason), words.count(n), words.percent(n / total, 2)]
        for reason, n in reasons
        if n > 0
    ]
    return _named("answered", ["", *shown], rows) | {"reasons": told}


def workers(report: _Report) -> _Table:
    """What the workers' queues are like, where that is known."""
    forms: dict[str, tuple[str, Callable[[Any], str]]] = {
        "batch": ("batch", words.number),
        "wait_ms": ("queued", words.millis),
        "expired": ("expired", words.count),
        "busy": ("refused", words.count),
    }
    shown = [e for e in report["legs"] if e["key"] in ("system", "cloud_only") and e.get("workers")]
    for rare in ("expired", "busy"):
        if not any(entry["workers"].get(rare) for entry in shown):
            del forms[rare]
    rows: list[list[Cell]] = []
    for entry in shown:
        counts = entry["workers"]
        told = [form(counts[k]) if k in counts else "n/a" for k, (_, form) in forms.items()]
        rows.append([entry["name"], words.percent(entry["utilisation"]), *told])
    return _named("workers", ["", "busy", *(text for text, _ in forms.values())], rows)


def legs(report: _Report) -> _Table:
    """All figures of all legs: a column each, so that it grows downwards."""
    every = report["legs"]

    def figure(
        name: str, form: Callable[[float | None], str], of: Callable[[_Report], Any]
    ) -> list[Cell]:
        return [name, *(_cell(of(entry), form) for entry in every)]

    rows = [
        figure("accuracy", words.percent, lambda e: e["accuracy"]),
        figure("offloaded", words.percent, lambda e: e["offload_rate"]),
        figure("cost per instance", words.number, lambda e: e["cost"]),
        figure("of it features", words.number, lambda e: e["feature_cost"]),
        *(figure(name, words.millis, partial(_quantile, q)) for q, name in _TIMES.items()),
        figure("bytes up per instance", words.number, lambda e: e["bytes"]["up"]),
        figure("bytes down", words.number, lambda e: e["bytes"]["down"]),
        figure("energy, device and day", words.joules, lambda e: e["joules_per_device_day"]),
    ]
    if any(entry["battery_days"] is not None for entry in every):
        rows.append(figure("battery, days", words.number, lambda e: e["battery_days"]))
    if priced(report):
        unit = f"{report['money']['currency']} a month"
        rows.append(figure(unit, words.number, lambda e: e["money"]["total"]))
    rows.append(figure("workers busy", words.percent, lambda e: e["utilisation"]))
    if any(entry["engine"] != report["engine"] for entry in every):
        rows.append(["engine", *(entry["engine"] for entry in every)])
    heads = [Markup("{}{}").format(_key(entry["key"]), entry["name"]) for entry in every]
    return _named("legs", ["", *heads], rows)


def _cell(figure: Any, form: Callable[[float | None], str]) -> Cell:
    return (
        _with_ends(figure, form) if isinstance(figure, Mapping) or figure is None else form(figure)
    )


def _quantile(name: str, entry: _Report) -> Any:
    return entry["latency_ms"].get(name)


def twin(report: _Report) -> _Table:
    """A live run beside itself in virtual time."""
    both = report.get("twin") or {"live": {}, "virtual": {}}
    rows: list[list[Cell]] = []
    for name, live in both["live"].items():
        form: Callable[[float | None], str] = words.number
        if name.endswith("_ms"):
            form = words.millis
        elif name in ("accuracy", "offload_rate", "fallback"):
            form = partial(words.percent, digits=2)
        told = name.removesuffix("_ms").replace("_", " ")
        rows.append([told, form(live), form(both["virtual"][name])])
    return _named("twin", ["", "live", "virtual"], rows)


def _key(key: str) -> Markup:
    """The leg's mark, as in the drawings."""
    return tag("svg", shape(key, 7.0, 7.0, 6.0), viewBox="0 0 14 14", cls="key", aria_hidden="true")


def details(report: _Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings, and what the figures rest on: (head, rows of name and value)."""
    transport = report["transport"]
    settings = [(k.replace("_", " "), _plain(v)) for k, v in report["settings"].items()]
    basis = [
        ("bundle", str(report["method"])),
        ("transport", f"{transport['kind']}, broker {transport['broker']}, "
                      f"link {transport['link']}"),
        ("stepped", report["sampling"]),
        ("confidence level", words.percent(report["confidence_level"], 0)),
        *((f"calibration: {k.replace('_', ' ')}", _plain(v))
          for k, v in report["calibration"].items()),
        *((f"energy: {k.replace('_', ' ')}", _plain(v))
          for k, v in report["energy"].items() if v is not None),
        ("versions", _plain(report["versions"])),
    ]  # fmt: skip
    if report.get("run"):
        basis.append(("machine", _plain(report["run"].get("machine"))))
    return [("Settings", settings), ("What the figures rest on", basis)]


def _plain(thing: Any) -> str:
    if isinstance(thing, Mapping):
        return ", ".join(f"{k.replace('_', ' ')} {_plain(v)}" for k, v in thing.items())
    if isinstance(thing, list | tuple):
        return ", ".join(_plain(v) for v in thing)
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, float):
        return f"{thing:g}"
    return f"{thing:,}" if isinstance(thing, int) else str(thing)
