"""Virtual time beside a live run of the same instances: how near the twin comes.

    python -m benchmarks.bench_twin [--quick]

Cascades on digits and on Letters, 20 and 100 devices, Wi-Fi and 4G. Virtual time is calibrated
once for each bundle, on rows that the compared runs do not use, and then foresees each
run: the same settings, the same seed, so the same instances at the same times. The live run is
broker, worker and devices as processes, over MQTT and emulated links. Writes twin.json
and twin.md into benchmarks/results; a quick look into .bench-cache/quick. Minutes; the machine
should have nothing else to do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.fleet.twin_bundles import NAMES, Subject, subject
from gatewise.console import note
from gatewise.errors import InputError
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.calibration.measuring import calibrate
from gatewise_sim.fleet.answers import LOCAL, Answers
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.run import run_live

PACKAGES: Final = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
DEVICES: Final = (20, 100)
LINKS: Final = ("wifi", "4g")
#: Instances a second, over all devices.
RATE: Final = 80.0
SECONDS: Final = 30.0
QUICK_SECONDS: Final = 10.0
SEED: Final = 7
DEADLINE_MS: Final = 2000.0
SHARE, LEAST_MS = 0.1, 3.0

#: Key, name, unit, and how near is near: "exact", "ms" (10 % or 3 ms) or "share" (10 %).
MEASURES: Final = (
    ("p50_ms", "p50 latency", "ms", "ms"),
    ("p95_ms", "p95 latency", "ms", "ms"),
    ("offloaded_p50_ms", "p50 of the offloaded", "ms", "ms"),
    ("offloaded_p95_ms", "p95 of the offloaded", "ms", "ms"),
    ("offload_rate", "offload rate", "", "exact"),
    ("accuracy", "accuracy", "", "exact"),
    ("bytes", "bytes an instance", "B", "share"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_twin", __doc__, "digits, 20 devices, Wi-Fi: a look")
    parser.add_argument("--only", default="", help="some of the cells, as letters/100/4g")
    parser.add_argument("--seconds", type=float, default=None, help="of each run")
    options = parser.parse_args(arguments)
    quick = options.quick or options.only or options.seconds
    out = harness.out_folder(options, whole=not quick)
    cells = [(n, d, k) for n in NAMES for d in DEVICES for k in LINKS]
    if options.quick:
        cells = cells[:1]
    cells = [cell for cell in cells if "/".join(map(str, cell)).startswith(options.only)]
    if not cells:
        note(f"bench_twin: no cell {options.only!r}; write it as digits/20/wifi")
        return 2
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)

    def action() -> int:
        document = _document(cells, seconds) | {"quick": bool(quick)}
        page = markdown(document)
        harness.write_results(out, "twin", document, page)
        print(page)
        return 0

    return harness.run_command(action)


def _document(cells: Sequence[tuple[str, int, str]], seconds: float) -> dict[str, Any]:
    began = time.monotonic()
    made: dict[str, Subject] = {}
    skipped: dict[str, str] = {}
    for name in dict.fromkeys(name for name, *_ in cells):
        try:
            made[name] = subject(name)
        except InputError as error:
            skipped[name] = str(error)
            note(f"skipped: {error}")
    measured: dict[str, Calibration] = {}
    results = []
    for name, devices, link in cells:
        if name not in made:
            continue
        if name not in measured:
            note(f"calibrating {name}")
            measured[name] = calibrate(made[name].bundle.path, made[name].spare)
        found = _cell(made[name], measured[name], devices, link, seconds)
        results.append(found)
        off = [row["measure"] for row in found["rows"] if not row["held"]]
        note(f"{name}, {devices} devices, {link}: " + (", ".join(off) or "all") + (
            " not held" if off else " held"
        ))  # fmt: skip
    return {
        "benchmark": "twin",
        "settings": {
            "instances_per_second": RATE,
            "seconds": seconds,
            "deadline_ms": DEADLINE_MS,
            "seed": SEED,
            "workers": 1,
            "tolerance": {"share": SHARE, "least_ms": LEAST_MS},
        },
        "bundles": {name: found.about for name, found in made.items()},
        "skipped": skipped,
        "calibration": {
            name: found.as_dict() | {"about": dict(found.about)} for name, found in measured.items()
        },
        "cells": results,
        "held": bool(results) and all(row["held"] for cell in results for row in cell["rows"]),
        "minutes": round((time.monotonic() - began) / 60, 1),
        **harness.environment(PACKAGES),
    }


def _settings(calibration: Calibration, devices: int, link: str, seconds: float) -> FleetSettings:
    return FleetSettings(
        devices=devices,
        seconds=seconds,
        workload=f"poisson:{RATE / devices:g}/s",
        link=PROFILES[link],
        service=calibration.service,
        deadline_ms=DEADLINE_MS,
        seed=SEED,
    )


def _cell(
    found: Subject, calibration: Calibration, devices: int, link: str, seconds: float
) -> dict[str, Any]:
    settings = _settings(calibration, devices, link, seconds)
    routes = Routes.from_bundle(found.bundle, found.rows, found.truth)
    begun = time.perf_counter()
    virtual = simulate_fleet(routes, calibration.apply(settings, live=True))
    took = time.perf_counter() - begun
    load = os.getloadavg()[0]
    live = run_live(found.bundle.path, found.rows, settings)
    rows = compare(live.answers, virtual.answers, found.truth)
    return {
        "bundle": found.name,
        "devices": devices,
        "link": link,
        "instances": len(virtual.answers),
        "rows": rows,
        "same_decisions": _same(live.answers, virtual.answers),
        "live": {
            "broker": live.broker,
            "processes": live.processes,
            "lost": live.lost,
            "troubles": live.troubles,
            "behind_ms": live.behind_ms,
            "cpu_seconds": live.cpu_seconds,
            "load_before": round(load, 2),
            "counters": live.devices,
        },
        "virtual": {
            "seconds": round(took, 3),
            "counters": virtual.devices,
            "worker": virtual.workers[0],
        },
    }


def figures(answers: Answers, truth: NDArray[np.int64]) -> dict[str, float]:
    """Figures of a run, by the keys of :data:`MEASURES`."""
    asked = ~LOCAL[answers.reason]
    of = {"": answers.latency_ms, "offloaded_": answers.latency_ms[asked]}
    return {
        **{
            f"{which}p{p}_ms": float(np.percentile(values, p)) if len(values) else float("nan")
            for which, values in of.items()
            for p in (50, 95)
        },
        "offload_rate": float(asked.mean()),
        "accuracy": float((answers.label == truth[answers.row]).mean()),
        "bytes": float((answers.up.astype(np.int64) + answers.down).mean()),
    }


def compare(live: Answers, virtual: Answers, truth: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Put the figures of both side by side, each with its tolerance and whether it held."""
    told, foreseen = figures(live, truth), figures(virtual, truth)
    rows = []
    for key, name, unit, kind in MEASURES:
        tolerance = 0.0 if kind == "exact" else SHARE * abs(told[key])
        tolerance = max(tolerance, LEAST_MS) if kind == "ms" else tolerance
        off = foreseen[key] - told[key]
        rows.append(
            {
                "key": key,
                "measure": name,
                "unit": unit,
                "live": told[key],
                "virtual": foreseen[key],
                "difference": off,
                "tolerance": tolerance,
                "held": abs(off) <= tolerance,
            }
        )
    return rows


def _same(live: Answers, virtual: Answers) -> dict[str, bool]:
    """Whether each instance met the same fate, beyond the sums."""
    if len(live) != len(virtual):
        return {"instances": False}
    names = ("time", "device", "row", "route", "stage", "label", "cost")
    return {n: bool(np.array_equal(getattr(live, n), getattr(virtual, n))) for n in names}


def markdown(document: dict[str, Any]) -> str:
    """Make the page."""
    settings = document["settings"]
    lines = [
        "# The twin: virtual time beside a live run",
        "",
        f"Made by `make bench-twin`; all figures are in `twin.json`. "
        f"{document['machine']['cores']} cores shared by broker, "
        f"worker, devices and the proxies of their links; "
        f"{settings['instances_per_second']:g} instances a second over all devices, for "
        f"{settings['seconds']:g} s a cell, the same instances at the same times in both. "
        "Calibrated once for each bundle, on other rows. Tolerance: 10 % of the live figure or "
        "3 ms, whichever is larger; none for offload rate and accuracy.",
        "",
        f"All held: **{'yes' if document['held'] else 'no'}**.",
        "",
    ]
    lines += [f"Skipped: {why}." for why in document["skipped"].values()]
    lines += [
        "| bundle | devices | link | | live | virtual | difference | tolerance | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in document["cells"]:
        for row in cell["rows"]:
            told = [
                f"{row[k]:.4f}" if not row["unit"] else f"{row[k]:.2f}"
                for k in ("live", "virtual", "difference", "tolerance")
            ]
            unit = f", {row['unit']}" if row["unit"] else ""
            lines.append(
                f"| {cell['bundle']} | {cell['devices']} | {cell['link']} | {row['measure']}{unit} "
                f"| {' | '.join(told)} | {'held' if row['held'] else '**not held**'} |"
            )
    lines += [
        "",
        "| bundle | devices | link | instances | same decisions | virtual took s "
        "| live began late ms, p50 / p99 | load before |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in document["cells"]:
        other = [name for name, same in cell["same_decisions"].items() if not same]
        late = cell["live"]["behind_ms"]
        lines.append(
            f"| {cell['bundle']} | {cell['devices']} | {cell['link']} | {cell['instances']} "
            f"| {'other ' + ', '.join(other) if other else 'all'} "
            f"| {cell['virtual']['seconds']:.2f} | {late['p50']:.2f} / {late['p99']:.2f} "
            f"| {cell['live']['load_before']:.1f} |"
        )
    lines += [
        "",
        "| bundle | edge ms by stage | run us | message us | broker us | hop ms | proxy ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in document["calibration"].items():
        service = found["service"]
        edge = ", ".join(f"{ms:.3f}" for ms in found["edge_ms"])
        lines.append(
            f"| {name} | {edge} | {service['base_us']:.0f} + {service['each_us']:.0f} n "
            f"| {service['message_us']:.0f} | {found['broker_us']:.0f} | {found['hop_ms']:.3f} "
            f"| {found['proxy_ms']:.3f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
