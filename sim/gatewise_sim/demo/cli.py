"""``gatewise demo``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewise.console import emit, table
from gatewise_sim.fleet.network.proxy import PROFILES
from gatewise_sim.signal_handling import unwound_when_terminated

__all__ = ["commands", "demo"]


def demo(
    dataset: Annotated[
        str,
        typer.Option(help="digits, breast_cancer, wine, iris; or a .csv, .parquet or .npz file."),
    ] = "digits",
    target: Annotated[str | None, typer.Option(help="The file's label column.")] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Feature prices, .toml or .csv; 1 each by default.")
    ] = None,
    method: Annotated[str, typer.Option(help="staged, adapt-gbrt or adapt-lin.")] = "staged",
    devices: Annotated[int, typer.Option(help="Edge devices.", min=1, max=64)] = 4,
    workers: Annotated[
        int, typer.Option(help="Cloud workers; several need --broker.", min=1, max=16)
    ] = 1,
    instances: Annotated[
        int | None, typer.Option(help="Test instances to route; all held out by default.")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(help="URL of a broker that runs; an embedded one by default."),
    ] = None,
    link: Annotated[
        str, typer.Option(help=f"Between devices and broker: {', '.join(PROFILES)}.")
    ] = "wifi",
    budget: Annotated[float | None, typer.Option(help="Mean cost per instance.")] = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Accuracy to give up at most; 0.005 by default.")
    ] = None,
    offload_rate: Annotated[float | None, typer.Option(help="Share to offload at most.")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take NaN as a value.")
    ] = False,
    stage_kb: Annotated[
        int, typer.Option(help="Room for a stage on a device, in KB (method staged).", min=1)
    ] = 32,
    deadline_ms: Annotated[float, typer.Option(help="For each answer.", min=1)] = 2000.0,
    seed: Annotated[int, typer.Option(help="Of all randomness.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train on real data, pack, deploy over MQTT, measure what is saved.

    Starts a broker, cloud workers and devices as real processes, lets them answer the test
    instances three times (the system, all on the edge, all in the cloud), and writes
    report.html, report.json, frontier.svg, the bundle and the instances to --out. Exits 0
    only if no instance was lost.

        gatewise demo
        gatewise demo --dataset wine --link 3g --devices 2
        gatewise demo --dataset table.csv --target label --budget 4
        gatewise demo --broker mqtt://127.0.0.1:1883 --workers 2
    """
    from gatewise_sim.demo.run import Options, run_demo

    with unwound_when_terminated():
        report = run_demo(
            Options(
                dataset=dataset,
                target=target,
                costs=costs,
                method=method,
                devices=devices,
                workers=workers,
                instances=instances,
                broker=broker,
                link=link,
                budget=budget,
                max_loss=max_loss,
                offload_rate=offload_rate,
                allow_missing=allow_missing,
                stage_kb=stage_kb,
                deadline_ms=deadline_ms,
                seed=seed,
                out=out,
            )
        )
    if as_json:
        emit(report)
    else:
        _show(report, out)
    if any(leg["lost"] for leg in report["passes"].values()):
        raise typer.Exit(1)


def _show(report: Mapping[str, Any], out: Path) -> None:
    from gatewise_sim.report import words
    from gatewise_sim.report.drawings.marks import NAMES

    def row(name: str, values: Mapping[str, Any], form: Any) -> list[str]:
        return [name, *(form(values[key]) for key in NAMES)]

    latency, passes = report["latency_ms"], report["passes"]
    table(
        f"{report['dataset']}: {report['instances']} instances, link {report['transport']['link']}",
        ["", *NAMES.values()],
        [
            row("accuracy", report["accuracy"], words.percent),
            row("feature cost per instance", report["feature_cost"], words.number),
            row("bytes per instance",
                {key: report["traffic"][key]["per_instance"] for key in NAMES}, words.number),
            *(row(f"answer within, {q[1:]} %", {key: latency[key][q] for key in NAMES},
                  words.millis) for q in ("p50", "p95", "p99")),
            *(row(f"answered by {route}" if route != "lost" else "lost",
                  {key: passes[key][route] for key in NAMES}, str)
              for route in ("edge", "cloud", "fallback", "lost")),
        ],
    )  # fmt: skip
    print("\n".join(["", words.headline(report), *words.caveats(report), str(out / "report.html")]))


commands = {"demo": demo}
