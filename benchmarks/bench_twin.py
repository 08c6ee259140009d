"""Difference between a simulation in virtual time and a live run of the same instances.

    python -m benchmarks.bench_twin [--quick] [--only digits/20/wifi] [--seconds 30]

The cells are cascades on digits and on Letters, 20 and 100 devices, Wi-Fi and 4G. A short live run
over the same link on other instances measures the service times. The simulation then predicts each
live run from the same scenario and seed, so both have the same instances at the same times. A live
run has a broker, a worker and devices as processes, which communicate by MQTT over emulated links.
The results are twin.json and twin.md in benchmarks/results; ``--quick`` writes them into
.bench-cache/quick. Other programs on the machine change the results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.data.fleet_bundles import CASCADE_SETTINGS, FleetBundle, fleet_bundle
from benchmarks.harness import Column
from gatewise.console import note
from gatewise.errors import InputError
from gatewise_sim.experiment.policies import system_policy
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.fleet.results import Answers, RowTable
from gatewise_sim.fleet.run import run_fleet
from gatewise_sim.live.run import LiveRun, run_live
from gatewise_sim.scenario import Scenario

PACKAGES: Final = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
DEVICES: Final = (20, 100)
LINKS: Final = ("wifi", "4g")
CELLS: Final = [
    f"{name}/{n_devices}/{link}"
    for name in CASCADE_SETTINGS
    for n_devices in DEVICES
    for link in LINKS
]
#: Instances per second, over all devices.
RATE: Final = 80.0
#: Length of a live run.
SECONDS: Final = 30.0
QUICK_SECONDS: Final = 10.0
SEED: Final = 7
#: Long enough for offloads over 4G.
DEADLINE_MS: Final = 2000.0

#: Key, name and unit of a figure, its tolerance as a share of the live figure, and the minimum
#: tolerance.
MEASURES: Final = (
    ("p50_ms", "p50 latency", "ms", 0.1, 3.0),
    ("p95_ms", "p95 latency", "ms", 0.1, 3.0),
    ("offloaded_p50_ms", "p50 of the offloaded", "ms", 0.1, 3.0),
    ("offloaded_p95_ms", "p95 of the offloaded", "ms", 0.1, 3.0),
    ("offload_rate", "offload rate", "", 0.0, 0.0),
    ("accuracy", "accuracy", "", 0.0, 0.0),
    ("bytes", "bytes an instance", "B", 0.02, 0.0),
    ("joules", "radio energy an instance", "J", 0.02, 0.0),
)
_COMPARED_COLUMNS: Final = ("time", "device", "row", "route", "stage", "label", "cost")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the cells."""
    cells = [cell for cell in CELLS if cell.startswith(options.only)]
    if not cells:
        raise InputError(f"no cell {options.only!r}; write it as {CELLS[0]}")
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    start_time = time.monotonic()
    results = []
    for cell in cells[:1] if options.quick else cells:
        name, n_devices, link = cell.split("/")
        results.append(_measure_cell(fleet_bundle(name), int(n_devices), link, seconds))
        missed_figures = [row["measure"] for row in results[-1]["rows"] if not row["held"]]
        note(f"{cell}: {', '.join(missed_figures) or 'none'} not held")
    return {
        "benchmark": "twin",
        "settings": {"instances_per_second": RATE, "seconds": seconds, "seed": SEED},
        "cells": results,
        "held": all(row["held"] for cell in results for row in cell["rows"]),
        "minutes": round((time.monotonic() - start_time) / 60, 1),
    }


def _measure_cell(bundle: FleetBundle, n_devices: int, link: str, seconds: float) -> dict[str, Any]:
    scenario = Scenario(
        devices=n_devices,
        time=f"{seconds:g}s",
        workload=f"poisson:{RATE / n_devices:g}/s",
        link=link,
        deadline_ms=DEADLINE_MS,
        seed=SEED,
        engine="live",
    )
    table, _ = make_row_table(bundle.bundle, bundle.rows, bundle.truth)
    load_before = os.getloadavg()[0]
    # Measure service times on other instances at the same rate, so that the comparison is fair.
    calibration = _run_live(
        bundle, scenario.changed(seed=SEED + 1, time=f"{seconds / 3:g}s"), table
    )
    live = _run_live(bundle, scenario, table)
    virtual = run_fleet(
        table,
        scenario,
        system_policy(scenario, table),
        calibration.timings,
        arrivals=scenario.draw_fleet_arrivals(len(table), table.truth),
    )
    return {
        "bundle": bundle.name,
        "devices": n_devices,
        "link": link,
        "instances": len(virtual.answers),
        "rows": compare(live.fleet.answers, virtual.answers, bundle.truth),
        "same_decisions": same_decisions(live.fleet.answers, virtual.answers),
        "lost": live.fleet.n_lost,
        "troubles": live.troubles,
        "behind_ms": live.send_delay_ms,
        "load_before": round(load_before, 2),
        "timings": msgspec.to_builtins(calibration.timings),
    }


def _run_live(bundle: FleetBundle, scenario: Scenario, table: RowTable) -> LiveRun:
    return run_live(bundle.bundle.path, bundle.rows.tolist(), scenario, table)


def figures(answers: Answers, truth: NDArray[np.int64]) -> dict[str, float]:
    """Read the figures of a run by the keys of :data:`MEASURES`."""
    is_offloaded = answers.is_offloaded
    latencies = {"": answers.latency_ms, "offloaded_": answers.latency_ms[is_offloaded]}
    quantiles = {
        f"{prefix}p{percentile}_ms": float(np.percentile(values, percentile))
        if len(values)
        else float("nan")
        for prefix, values in latencies.items()
        for percentile in (50, 95)
    }
    return {
        **quantiles,
        "offload_rate": float(is_offloaded.mean()),
        "accuracy": float((answers.label == truth[answers.row]).mean()),
        "bytes": float((answers.bytes_up.astype(np.int64) + answers.bytes_down).mean()),
        "joules": float(answers.radio_joules.mean(dtype=np.float64)),
    }


def compare(live: Answers, virtual: Answers, truth: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Compare the figures of both runs, each with its tolerance and whether it holds."""
    live_figures = figures(live, truth)
    virtual_figures = figures(virtual, truth)
    rows = []
    for key, name, unit, relative_tolerance, min_tolerance in MEASURES:
        tolerance = max(relative_tolerance * abs(live_figures[key]), min_tolerance)
        difference = virtual_figures[key] - live_figures[key]
        rows.append(
            {
                "key": key,
                "measure": name,
                "unit": unit,
                "live": live_figures[key],
                "virtual": virtual_figures[key],
                "difference": difference,
                "tolerance": tolerance,
                "held": abs(difference) <= tolerance,
            }
        )
    return rows


def same_decisions(live: Answers, virtual: Answers) -> dict[str, bool]:
    """Return whether both runs have equal columns of answers, instance by instance."""
    return {
        name: bool(np.array_equal(getattr(live, name), getattr(virtual, name)))
        for name in _COMPARED_COLUMNS
    }


def page(document: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    settings = document["settings"]
    rows = [{**cell, **row} for cell in document["cells"] for row in cell["rows"]]
    return [
        "# The twin: virtual time compared with a live run",
        "",
        "`make bench-twin` writes this page; all figures are in `twin.json`. Broker, worker, "
        f"devices and the proxies of their links share {document['machine']['cores']} cores. All "
        f"devices together receive {settings['instances_per_second']:g} instances per second, for "
        f"{settings['seconds']:g} s per cell, and both runs have the same instances at the same "
        "times. A shorter live run on other instances measures the service times. The tolerance "
        "of a latency is 10 % of the live figure or 3 ms, that of bytes and energy is 2 %. Offload "
        "rate and accuracy must be equal.",
        "",
        f"All held: **{'yes' if document['held'] else 'no'}**.",
        "",
        *harness.column_table(FIGURE_COLUMNS, rows),
        "",
        *harness.column_table(RUN_COLUMNS, document["cells"]),
    ]


def _write_differing_columns(cell: Mapping[str, Any]) -> str:
    differing_columns = [name for name, is_same in cell["same_decisions"].items() if not is_same]
    return f"other {', '.join(differing_columns)}" if differing_columns else "all"


def _write_service_time(timings: Mapping[str, Any]) -> str:
    """Write the time of a worker's run on n instances."""
    return f"{timings['run_us']:.0f} + {timings['instance_us']:.0f} n"


CELL_COLUMNS: Final = (
    Column("bundle", lambda cell: cell["bundle"]),
    Column("devices", lambda cell: str(cell["devices"])),
    Column("link", lambda cell: cell["link"]),
)
#: Table of figures; a row is a figure of a cell with the fields of the cell.
FIGURE_COLUMNS: Final = (
    *CELL_COLUMNS,
    Column("", lambda row: f"{row['measure']}, {row['unit']}".rstrip(", ")),
    Column("live", lambda row: f"{row['live']:.4g}"),
    Column("virtual", lambda row: f"{row['virtual']:.4g}"),
    Column("difference", lambda row: f"{row['difference']:.4g}"),
    Column("tolerance", lambda row: f"{row['tolerance']:.4g}"),
    Column("", lambda row: "held" if row["held"] else "**not held**"),
)
#: Table of the two runs of each cell.
RUN_COLUMNS: Final = (
    *CELL_COLUMNS,
    Column("instances", lambda cell: str(cell["instances"])),
    Column("same decisions", _write_differing_columns),
    Column(
        "live began late ms, p50 / p99",
        lambda cell: f"{cell['behind_ms']['p50']:.2f} / {cell['behind_ms']['p99']:.2f}",
    ),
    Column("load before", lambda cell: f"{cell['load_before']:.1f}"),
    Column(
        "edge ms by stage",
        lambda cell: ", ".join(f"{ms:.3f}" for ms in cell["timings"]["edge_ms"]),
    ),
    Column("run us", lambda cell: _write_service_time(cell["timings"])),
    Column("hop ms", lambda cell: f"{cell['timings']['hop_ms']:.3f}"),
)


BENCHMARK = harness.Benchmark(
    name="twin",
    quick_help="run only digits with 20 devices over Wi-Fi",
    packages=PACKAGES,
    measure=measure,
    page=page,
    options={
        "--only": {
            "default": "",
            "help": "run only cells with this prefix, such as letters/100/4g",
        },
        "--seconds": {"type": float, "help": "length of each run"},
    },
    is_partial=lambda options: bool(options.only or options.seconds),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
