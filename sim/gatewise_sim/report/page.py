"""The demo's report as one self-contained page: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gatewise_sim.report import words
from gatewise_sim.report.drawings.bars import draw_bars
from gatewise_sim.report.drawings.frontier import Mark, draw_frontier
from gatewise_sim.report.drawings.latency import Curve, draw_latency
from gatewise_sim.report.drawings.marks import NAMES
from gatewise_sim.report.drawings.picture import Picture, pictured
from gatewise_sim.report.html import one_line_each, write_page

__all__ = ["render"]

_LISTED = 14
_QUANTILES = {"p50": "half within", "p95": "95 %", "p99": "99 %"}


def render(report: Mapping[str, Any]) -> str:
    """Make the page of a report.

    Parameters
    ----------
    report : mapping
        As written to ``report.json``.

    Returns
    -------
    str
        HTML.
    """
    latency, histogram = report["latency_ms"], report["latency_histogram"]
    curves = [
        Curve(key, NAMES[key], histogram["edges_ms"], counts, latency[key]["p50"],
              latency[key]["p95"])
        for key, counts in histogram["counts"].items()
        if sum(counts)
    ]  # fmt: skip
    per_instance = {key: report["traffic"][key]["per_instance"] for key in NAMES}
    wrong = {k: None if a is None else 1000 * (1 - a) for k, a in report["accuracy"].items()}
    return write_page(
        "page.html.j2",
        report=report,
        headline=words.headline(report),
        caveats=words.caveats(report),
        facts=_facts(report),
        frontier=pictured(
            partial(draw_frontier, report["frontier"], _marks(report)), "frontier"
        ),
        latency=pictured(partial(draw_latency, curves), "latency") if curves else None,
        latency_columns=["", *_QUANTILES.values()],
        latency_rows=[
            [c.name, *(words.millis(latency[c.key][q]) for q in _QUANTILES)] for c in curves
        ],
        cost_bars=_bars(report["feature_cost"], "Feature cost", "per instance", "cost"),
        bytes_bars=_bars(per_instance, "Bytes", "bytes per instance", "bytes"),
        error_bars=_bars(wrong, "Wrong answers", "per 1,000", "errors"),
        answered=[
            [name, *(f"{report['passes'][key][route]:,}"
                     for route in ("edge", "cloud", "fallback", "late", "lost"))]
            for key, name in NAMES.items()
        ],
        workers=_workers(report["workers"]),
        checked=_checked(report["expected"]),
        command=one_line_each(report["command"]),
        details=_details(report),
        listed=_listed,
    )  # fmt: skip


def _marks(report: Mapping[str, Any]) -> list[Mark]:
    """What the three legs were measured at: no sampling, no interval."""
    cost, accuracy = report["cost"]["full"], report["accuracy"]
    return [
        Mark(key, name, (cost[key],) * 3, (accuracy[key],) * 3)
        for key, name in NAMES.items()
        if cost[key] is not None and accuracy[key] is not None
    ]


def _bars(values: Mapping[str, float | None], title: str, unit: str, name: str) -> Picture:
    rows = [(key, label, {"": v}) for key, label in NAMES.items() if (v := values[key]) is not None]
    return pictured(partial(draw_bars, rows, title=f"{title} of each leg", unit=unit), name)


def _facts(report: Mapping[str, Any]) -> list[dict[str, str]]:
    accuracy, cost = report["accuracy"], report["feature_cost"]
    latency = report["latency_ms"]
    asked = report["answers"]["cloud"] + report["answers"]["fallback"]
    return [
        {
            "name": "accuracy",
            "value": words.percent(accuracy["system"]),
            "interval": "",
            "note": f"all cloud {words.percent(accuracy['cloud_only'])}, "
            f"all edge {words.percent(accuracy['edge_only'])}",
        },
        {
            "name": "feature cost per instance",
            "value": words.number(cost["system"]),
            "interval": "",
            "note": f"all cloud {words.number(cost['cloud_only'])}",
        },
        {
            "name": "offloaded",
            "value": words.percent(report["offload_rate"]),
            "interval": "",
            "note": f"{asked:,} of {report['instances']:,} instances",
        },
        {
            "name": "median answer time",
            "value": words.millis(latency["system"]["p50"]),
            "interval": "",
            "note": f"all cloud {words.millis(latency['cloud_only']['p50'])}",
        },
        {
            "name": "lost",
            "value": str(report["answers"]["lost"]),
            "interval": "",
            "note": f"{report['answers']['fallback']} answered by fallback",
        },
    ]


def _checked(expected: Mapping[str, Any]) -> str:
    rows, differing = expected["compared"], expected["differing"]
    if not any(differing.values()):
        return (
            f"On all {rows:,} instances that edge or cloud answered, label, route and cost are "
            "exactly those that the estimator's own predict, offload and cost give."
        )
    return (
        f"Of {rows:,} instances that edge or cloud answered, {differing['labels']} have another "
        f"label, {differing['routes']} another route and {differing['costs']} another cost than "
        "the estimator's own predict, offload and cost give."
    )


def _workers(workers: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for i, counts in enumerate(workers):
        runs = counts.get("batches", 0)
        each = counts["model_us"] / 1e3 / counts["instances"] if counts.get("instances") else None
        parts.append(
            f"Worker {i + 1} answered {counts.get('answered', 0):,} requests in {runs:,} runs of "
            f"the model, {words.millis(each)} an instance."
        )
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _LISTED:
        return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
    return ", ".join(names) if names else "nothing new"


def _details(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    transport, cost = report["transport"], report["cost"]
    seconds = ", ".join(f"{name} {s:.1f} s" for name, s in report["seconds"].items())
    data = report["data"]
    rows = [
        ("data", f"{data['rows']:,} rows, {data['features']} features, {data['classes']} classes; "
                 f"{data['train_rows']:,} to train on"),
        ("method", f"{report['method']}; high-cost model: {report['high_cost_model']}"),
        ("transport", f"{transport['kind']}, broker {transport['broker']}, "
                      f"link {transport['link']}"),
        ("full cost per instance", _three(cost["full"])),
        ("feature cost as the papers count it", _three(cost["paper"])),
        ("bytes", f"Gatewise {report['bytes']['system']:,}, all cloud "
                  f"{report['bytes']['cloud_only']:,} in all: {report['traffic']['formula']}"),
        ("time taken", seconds),
    ]  # fmt: skip
    rows += [(name.replace("_", " "), str(value)) for name, value in report["settings"].items()]
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in report["versions"].items())))
    return rows


def _three(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {words.number(values[key])}" for key, name in NAMES.items())
