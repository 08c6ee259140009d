"""The report as one self-contained page: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gatewise_sim.report import charts, words

__all__ = ["render"]

_LISTED = 14
_LINE = 80


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
    environment = Environment(
        loader=PackageLoader("gatewise_sim.report", "."), autoescape=True, undefined=StrictUndefined
    )
    traffic = report["traffic"]
    return environment.get_template("page.html.j2").render(
        report=report,
        headline=words.headline(report),
        caveats=words.caveats(report),
        facts=_facts(report),
        frontier=charts.frontier(report),
        latency=charts.latency(report),
        cost_bars=charts.bars(
            report["feature_cost"],
            title="Feature cost per instance",
            unit="per instance",
            name="cost",
        ),
        bytes_bars=charts.bars(
            {key: traffic[key]["per_instance"] for key in charts.NAMES},
            title="Bytes per instance",
            unit="bytes per instance",
            name="bytes",
        ),
        error_bars=charts.bars(
            {k: None if a is None else 1000 * (1 - a) for k, a in report["accuracy"].items()},
            title="Wrong answers per 1,000 instances",
            unit="per 1,000",
            name="errors",
        ),
        names=charts.NAMES,
        workers=_workers(report["workers"]),
        checked=_checked(report["expected"]),
        command=_broken(report["command"]),
        details=_details(report),
        percent=words.percent,
        number=words.number,
        listed=_listed,
    )


def _broken(command: str) -> str:
    """Break a long command into lines that a shell still takes."""
    return command if len(command) <= _LINE else command.replace(" --", " \\\n    --")


def _facts(report: Mapping[str, Any]) -> list[dict[str, str]]:
    accuracy, cost = report["accuracy"], report["feature_cost"]
    latency = report["latency_ms"]
    asked = report["answers"]["cloud"] + report["answers"]["fallback"]
    return [
        {
            "name": "accuracy",
            "value": words.percent(accuracy["system"]),
            "note": f"all cloud {words.percent(accuracy['cloud_only'])}, "
            f"all edge {words.percent(accuracy['edge_only'])}",
        },
        {
            "name": "feature cost per instance",
            "value": words.number(cost["system"]),
            "note": f"all cloud {words.number(cost['cloud_only'])}",
        },
        {
            "name": "offloaded",
            "value": words.percent(report["offload_rate"]),
            "note": f"{asked:,} of {report['instances']:,} instances",
        },
        {
            "name": "median answer time",
            "value": words.millis(latency["system"]["p50"]),
            "note": f"all cloud {words.millis(latency['cloud_only']['p50'])}",
        },
        {
            "name": "lost",
            "value": str(report["answers"]["lost"]),
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
    return ", ".join(f"{name} {words.number(values[key])}" for key, name in charts.NAMES.items())
