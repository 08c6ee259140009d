"""Sweeps: one simulation for each combination of settings, with a CSV file, a table and a plot.

The values of a setting are written ``devices=10,100,1000``, or with ``|`` between values that
contain commas: ``outage=none|cloud:12:00-12:10``. ``none`` stands for the absence of an optional
setting. A sweep skips points that have figures in the CSV file, so an interrupted sweep continues
where it stopped. A JSON file in the same folder describes the bundle, the rows and the other
settings. A sweep that differs in these does not continue the interrupted one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TextIO, get_type_hints

import msgspec

from gatewise.console import print_table, progress, showing_progress
from gatewise.documents import decode_json, encode_json
from gatewise.errors import GatewiseError, InputError
from gatewise.formats import listed, number
from gatewise_export.bundle.storage import replace_file
from gatewise_sim.experiment.run import Experiment, run_scenario
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.report.policy_result import PolicyResult, value_of
from gatewise_sim.scenario import GOALS, Scenario
from gatewise_sim.timings import Timings

CSV_FILE: Final = "sweep.csv"
ORIGIN_FILE: Final = "sweep.json"
PLOT_FILE: Final = "sweep.svg"
#: Largest number of points of a sweep, because each one takes seconds.
MAX_POINTS: Final = 1000
#: Settings without a sweep. Other programs would disturb the times of a live run.
_EXCLUDED_SETTINGS: Final = ("engine", "broker", "timings", "baselines")
SETTING_NAMES: Final = tuple(
    name for name in Scenario.__struct_fields__ if name not in _EXCLUDED_SETTINGS
)
#: Columns with figures of the system's run.
FIGURES: Final[Mapping[str, Callable[[PolicyResult], float | None]]] = {
    "accuracy": lambda system: value_of(system.accuracy),
    "offload_rate": lambda system: system.offload_rate.value,
    "cost": lambda system: system.cost.value,
    "bytes": lambda system: system.bytes.total,
    "p50_ms": lambda system: value_of(system.latency_ms.get("p50")),
    "p95_ms": lambda system: value_of(system.latency_ms.get("p95")),
    "fallbacks": lambda system: system.answers.fallback / system.instances,
    "joules_per_device_day": lambda system: system.joules_per_device_day,
    "money_per_month": lambda system: None if system.money is None else system.money.total,
}
_FIGURE_COLUMNS: Final = (*FIGURES, "error")

SweepValues = dict[str, tuple[str, ...]]
SweepRow = dict[str, str]


def read_sweeps(sweep_texts: Iterable[str]) -> SweepValues:
    """Parse sweeps into values by name of the setting; InputError if one is invalid.

    >>> read_sweeps(["devices=10,100", "outage=none|cloud:12:00-12:10"])
    {'devices': ('10', '100'), 'outage': ('none', 'cloud:12:00-12:10')}
    """
    values_by_setting: SweepValues = {}
    for sweep_text in sweep_texts:
        name, equals, values_text = sweep_text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InputError(f"sweep {sweep_text!r}: write it as devices=10,100,1000")
        if name not in SETTING_NAMES:
            close_names = get_close_matches(name, SETTING_NAMES, n=1)
            hint = (
                f", did you mean {close_names[0]!r}?"
                if close_names
                else f"; the settings are {', '.join(SETTING_NAMES)}"
            )
            raise InputError(f"sweep: unknown setting {name!r}{hint}")
        separator = "|" if "|" in values_text or name in ("outage", "mix") else ","
        setting_values = tuple(map(str.strip, values_text.split(separator)))
        for value_text in setting_values:
            _parse_change(name, value_text)
        values_by_setting[name] = tuple(
            dict.fromkeys(values_by_setting.get(name, ()) + setting_values)
        )
    goals = [name for name in GOALS if name in values_by_setting]
    if len(goals) > 1:
        raise InputError(f"sweep: {' and '.join(goals)} each choose the operating point")
    n_points = math.prod(map(len, values_by_setting.values()))
    if n_points > MAX_POINTS:
        raise InputError(f"sweep: {n_points:,} points; at most {MAX_POINTS:,} are allowed")
    return values_by_setting


def _parse_change(name: str, value_text: str) -> dict[str, Any]:
    """Parse a value of a sweep into a change of the scenario; InputError if it is invalid."""
    type_hint = get_type_hints(Scenario)[name]
    default = getattr(Scenario(), name)
    setting_value: Any
    if value_text == "none" and default in (None, ()):
        setting_value = default
    elif name == "outage":
        setting_value = tuple(window.strip() for window in value_text.split(","))
    else:
        try:
            setting_value = msgspec.convert(value_text, type_hint, strict=False)
        except msgspec.ValidationError:
            raise InputError(
                f"sweep {name}: {value_text!r} is not a value of this setting"
            ) from None
    try:
        Scenario().changed(**{name: setting_value})
    except InputError as error:
        raise InputError(f"sweep {name}: {error}") from None
    return {name: setting_value}


def run_sweep(job: Job, values_by_setting: SweepValues, folder: Path) -> list[SweepRow]:
    """Simulate every combination of settings, and write the rows to a CSV file in the folder.

    The models are timed once for all points.

    Parameters
    ----------
    job : Job
        Simulation with the settings that do not vary.
    values_by_setting : dict of str to tuple of str
        Values of each setting, from :func:`read_sweeps`.
    folder : Path
        Folder of the CSV file and the plot, which is created if necessary.

    Returns
    -------
    list of dict
        Row of each point, including points of an earlier sweep. A failed point has an `error`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CSV_FILE
    experiment = job.prepare()
    origin = _describe_origin(experiment, values_by_setting)
    rows = _read_rows(path, values_by_setting, origin)
    replace_file(folder / ORIGIN_FILE, encode_json(origin, indent=1))
    timings = experiment.timings
    combinations = list(itertools.product(*values_by_setting.values()))
    with progress("sweep") as report_progress:
        for n_done, combination_values in enumerate(combinations):
            combination = dict(zip(values_by_setting, combination_values, strict=True))
            report_progress(
                n_done, len(combinations), ", ".join(map("=".join, combination.items()))
            )
            if all(any(row[name] != combination[name] for name in combination) for row in rows):
                # Show the progress of the sweep alone.
                with showing_progress(False):
                    row = _run_point(job, combination, timings)
                _append_row(path, row)
                rows.append(row)
    _draw_plot(rows, values_by_setting, folder / PLOT_FILE)
    return rows


def _run_point(job: Job, combination: SweepRow, timings: Timings) -> SweepRow:
    """Simulate one combination of settings."""
    changes: dict[str, Any] = {"baselines": False, "timings": timings}
    for name, value_text in combination.items():
        changes |= _parse_change(name, value_text)
    row = combination | dict.fromkeys(_FIGURE_COLUMNS, "")
    try:
        changed_job = replace(job, scenario=job.scenario.changed(**changes))
        return row | _format_figures(
            run_scenario(changed_job.prepare(), changed_job.command()).system
        )
    except GatewiseError as error:
        return row | {"error": str(error)}


def _format_figures(system: PolicyResult) -> SweepRow:
    figures = {name: get_figure(system) for name, get_figure in FIGURES.items()}
    return {name: "" if figure is None else f"{figure:.6g}" for name, figure in figures.items()}


def _describe_origin(experiment: Experiment, values_by_setting: SweepValues) -> dict[str, Any]:
    """Describe everything that all points share, except the measured timings."""
    rows = experiment.rows
    rows_hash = hashlib.sha256(rows.X.tobytes())
    rows_hash.update(b"" if rows.truth is None else rows.truth.tobytes())
    # the contents of files stand for their names
    settings = msgspec.to_builtins(experiment.scenario) | {
        "link": msgspec.to_builtins(experiment.scenario.link_profile),
        "prices": msgspec.to_builtins(experiment.prices),
        "device_energy": msgspec.to_builtins(experiment.energy),
    }
    return {
        "bundle": hashlib.sha256(encode_json(experiment.bundle.manifest)).hexdigest(),
        "rows": rows_hash.hexdigest(),
        **{name: settings[name] for name in SETTING_NAMES if name not in values_by_setting},
    }


def _read_rows(
    path: Path, values_by_setting: SweepValues, origin: Mapping[str, Any]
) -> list[SweepRow]:
    """Read the finished points of an interrupted sweep, and drop all others from the file.

    Raises InputError if the file belongs to a sweep of other settings, or with another `origin`.
    """
    if not path.exists():
        return []
    origin_file = path.with_name(ORIGIN_FILE)
    if not origin_file.exists():
        raise InputError(f"{path} belongs to another sweep: give another --out")
    old_origin = decode_json(origin_file.read_bytes(), dict[str, Any], str(origin_file))
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != (*values_by_setting, *_FIGURE_COLUMNS):
            raise InputError(f"{path} belongs to another sweep: give another --out")
        rows = list(reader)
    # compare as JSON, in which tuples are lists
    new_origin = decode_json(encode_json(origin), dict[str, Any], str(origin_file))
    differences = [name for name in new_origin if new_origin[name] != old_origin.get(name)]
    if differences:
        raise InputError(
            f"{path} belongs to a sweep with another {listed(differences)}: give another --out"
        )
    # a row is incomplete if the sweep was killed while it was written; a failed point is repeated
    finished_rows = [row for row in rows if None not in row.values() and not row["error"]]
    if len(finished_rows) < len(rows):
        content = io.StringIO(newline="")
        _write_rows(content, reader.fieldnames or (), finished_rows, has_header=False)
        replace_file(path, content.getvalue().encode())
    return finished_rows


def _append_row(path: Path, row: SweepRow) -> None:
    has_header = path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        _write_rows(file, list(row), [row], has_header=has_header)


def _write_rows(
    file: TextIO, columns: Sequence[str], rows: Sequence[SweepRow], *, has_header: bool
) -> None:
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if not has_header:
        writer.writeheader()
    writer.writerows(rows)


def show_table(
    rows: Sequence[Mapping[str, str]], values_by_setting: SweepValues, folder: Path
) -> None:
    """Print a table of the points, and the paths of the sweep's files."""
    columns = [
        *values_by_setting,
        *(name for name in _FIGURE_COLUMNS if any(row[name] for row in rows)),
    ]
    cells = [[_format_cell(row[name], name in FIGURES) for name in columns] for row in rows]
    print_table("sweep", [name.replace("_", " ") for name in columns], cells)
    print(folder / CSV_FILE, folder / PLOT_FILE, sep="\n", flush=True)


def _format_cell(text: str, is_figure: bool) -> str:
    return number(float(text)) if is_figure and text else text


def _draw_plot(
    rows: Sequence[Mapping[str, str]], values_by_setting: SweepValues, path: Path
) -> None:
    """Draw accuracy against cost for each combination; without labels, draw the p95 latency."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    y_name = "accuracy" if any(row["accuracy"] for row in rows) else "p95_ms"
    figure = Figure(figsize=(7.0, 4.5))
    axes = figure.subplots()
    for row in rows:
        if row["cost"] and row[y_name]:
            point = (float(row["cost"]), float(row[y_name]))
            axes.plot(*point, "o", color="tab:blue", clip_on=False)
            axes.annotate(", ".join(row[name] for name in values_by_setting), point, fontsize=7)
    # The automatic margins of matplotlib would extend to impossible values.
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    if y_name == "accuracy":
        axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
    axes.set_xlabel("cost per instance")
    axes.set_ylabel(y_name.replace("_", " "))
    # without a fixed salt and without a date, so that equal sweeps write equal files
    with rc_context({"svg.hashsalt": "gatewise"}):
        figure.savefig(path, metadata={"Date": None})
