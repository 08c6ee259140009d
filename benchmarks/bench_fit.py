"""What fitting costs: CPU seconds and peak memory beside plain LightGBM, on Forest.

    python -m benchmarks.bench_fit [--quick] [--only plain-f0,staged]

Each part runs in a process of its own, with one thread, the parts in turn and that several times
over: a machine that is busy for a while is busy for all of them. Reading the data and what a
part is given (f0's answers, the stages' scores) is not timed; memory is all that the process
holds at the part's peak, data and libraries included. Writes fit.json and fit.md into
benchmarks/results; a quick look, or some parts only, into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.fit_parts import F0, PARTS, SETTING, Bench
from gatewise.console import note

PROBLEM = "forest-bin"
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba")
QUICK_ROWS, THRESHOLD_ROWS = 2000, 50_000

RATIOS: tuple[tuple[str, str, float | None], ...] = (
    ("adapt", "plain-trees", 3.0),
    ("adapt", "plain-rounds", None),
    ("adapt-fit", "plain-trees", None),
    ("staged", "plain-f0", 20.0),
)
"""Part, plain fit that it is held against, and how many of these it may cost."""

MEMORY = {"staged": 3.0}
"""The most a part may hold, in GB (1e9 bytes)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_fit", __doc__, "few rows, once each: only a look", PARTS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(measure(options.part, options.folder, options.quick)))
        return 0
    return harness.run_command(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    asked = harness.chosen_parts(options, PARTS)
    if {"adapt", "adapt-fit"} & set(asked):
        asked.append("plain-f0")  # whose answers they learn from
    names = [name for name in PARTS if name in asked]
    problems.get(PROBLEM)  # a missing file is told before any process is started
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(1 if options.quick else max(PARTS[name][2] for name in names)):
            for name in names:
                if turn < PARTS[name][2]:
                    found = harness.run_part(
                        __spec__.name, name, "--folder", folder, *["--quick"] * options.quick
                    )
                    runs[name].append(found)
                    peak = found["peak"] / 1e9
                    note(f"{name}: {found['cpu']:.2f} CPU s, {peak:.2f} GB, {found['about']}")
    whole = len(names) == len(PARTS) and not options.quick
    found = document(runs, options.quick)
    out = harness.out_folder(options, whole=whole)
    harness.write_results(out, "fit", found, markdown(found))
    return 0


# -- measuring ---------------------------------------------------------------------------------


def measure(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Run a part in this process: ``cpu`` and ``wall`` in s, ``before`` and ``peak`` in bytes."""
    fold = problems.get(PROBLEM).deal(0)[0]
    if quick:
        fold = fold.thinned(QUICK_ROWS)
    if not name.startswith("plain"):  # LightGBM alone compiles nothing
        _warm()
    part = PARTS[name][1](Bench(fold, folder, QUICK_ROWS if quick else THRESHOLD_ROWS))
    next(part)
    before = memory(peak=False)
    forget_peak()
    wall, cpu = time.perf_counter(), _cpu()
    about = next(part)
    found = {"cpu": _cpu() - cpu, "wall": time.perf_counter() - wall, "peak": memory(peak=True)}
    for _ in part:  # what it keeps for others is not timed
        raise AssertionError(f"part {name} stops more than twice")
    return {**found, "before": before, "about": dict(about)}


def memory(*, peak: bool) -> int:
    """Bytes that this process holds, or the most since :func:`forget_peak`.

    Off Linux only the most since it was started is known.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        wanted = "VmHWM:" if peak else "VmRSS:"
        lines = [line.split() for line in status.read_text().splitlines()]
        return 1024 * next(int(line[1]) for line in lines if line and line[0] == wanted)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def forget_peak() -> None:
    """Start anew with the peak of memory, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _cpu() -> float:
    """CPU seconds of this process, and of those that it started and has seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _warm() -> None:
    """Import everything and have numba compile: that is no part of a fit."""
    from gatewise_training import AdaptGBRT, StagedCascade

    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.arange(60) % 2
    StagedCascade(n_stages=1, random_state=0).fit(x, y)
    AdaptGBRT(p_full=(0.3,), penalties=(0.0,), n_rounds=5, warm_up=2, random_state=0).fit(x, y)


# -- figures -----------------------------------------------------------------------------------


def document(runs: Mapping[str, Sequence[Mapping[str, Any]]], quick: bool) -> dict[str, Any]:
    """Medians over the runs, ratios of these, and what is needed to repeat them."""
    parts = {
        name: {
            "title": PARTS[name][0],
            "cpu": _figure([run["cpu"] for run in found]),
            "wall": _figure([run["wall"] for run in found]),
            "peak_gb": _figure([run["peak"] / 1e9 for run in found]),
            "before_gb": _figure([run["before"] / 1e9 for run in found]),
            "about": found[-1]["about"],
        }
        for name, found in runs.items()
    }
    seconds = {name: median(run["cpu"] for run in found) for name, found in runs.items()}
    problem = problems.get(PROBLEM)
    return {
        "quick": quick,
        "settings": {
            "problem": PROBLEM,
            "note": problem.note,
            "data": problem.source,
            "rows": QUICK_ROWS if quick else 36603,
            "f0": F0,
            "adapt": SETTING,
            "threads": 1,
        },
        **harness.environment(PACKAGES),
        "parts": parts,
        "ratios": [
            {
                "part": part,
                "against": plain,
                "ratio": round(seconds[part] / seconds[plain], 2),
                "at_most": most,
            }
            for part, plain, most in RATIOS
            if part in parts and plain in parts
        ],
        "memory": [
            {"part": name, "peak_gb": parts[name]["peak_gb"]["median"], "at_most_gb": most}
            for name, most in MEMORY.items()
            if name in parts
        ],
    }


def _figure(values: Sequence[float]) -> dict[str, Any]:
    return {"median": round(median(values), 3), "runs": [round(v, 3) for v in values]}


def markdown(found: Mapping[str, Any]) -> str:
    """Write the page, of fit.json alone."""
    lines = [
        "# What fitting costs",
        "",
        "Made by `make bench-fit`; the figures are in `fit.json`. Forest, class 2 against the "
        f"rest, {found['settings']['rows']:,} rows to fit, one thread, each part in a process of "
        "its own, medians over the runs. Peak memory is the whole process's during the part; in "
        "brackets what it held when that began (data, libraries, what the part is given).",
        *(["", "A quick look on few rows, not a result."] if found["quick"] else []),
        "",
        "| part | | CPU s | runs | peak GB | about |",
        "| --- " * 6 + "|",
    ]
    for name, part in found["parts"].items():
        about = ", ".join(f"{k} {v}" for k, v in part["about"].items())
        memory = f"{part['peak_gb']['median']:.2f} ({part['before_gb']['median']:.2f})"
        figures = f"{part['cpu']['median']:.2f} | {len(part['cpu']['runs'])} | {memory}"
        lines.append(f"| `{name}` | {part['title']} | {figures} | {about} |")
    lines += ["", "| | | at most | |", "| --- " * 4 + "|"]
    for row in found["ratios"]:
        what = f"CPU s of `{row['part']}` / `{row['against']}`"
        lines.append(f"| {what} | {row['ratio']:.2f} | {_held(row['ratio'], row['at_most'])} |")
    for row in found["memory"]:
        what = f"peak GB of `{row['part']}`"
        held = _held(row["peak_gb"], row["at_most_gb"])
        lines.append(f"| {what} | {row['peak_gb']:.2f} | {held} |")
    return "\n".join(lines) + "\n"


def _held(figure: float, most: float | None) -> str:
    return " | " if most is None else f"{most:g} | {'met' if figure <= most else 'missed'}"


if __name__ == "__main__":
    sys.exit(main())
