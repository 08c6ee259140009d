"""Reports from files, read strictly; an error is one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from gatewise.errors import InputError
from gatewise_sim.report.comparison.figures import ComparedRun, figures_of_report
from gatewise_sim.report.model import POINT_KIND, SWEEP_KIND, Report
from gatewise_sim.report.sweep.setting_text import setting

LARGEST: Final = 64_000_000
"""Bytes of a file at most: a report has some hundred thousand."""

_SHORT: Final = 8  # of a digest, as a name
_DIGITS: Final = frozenset("0123456789abcdef")


def read_runs(paths: Sequence[str | Path]) -> list[ComparedRun]:
    """Read reports of the demo, of simulations and of sweeps' points."""
    found = [one for path in paths for one in _reports(Path(path))]
    names = _distinct([name for name, _, _ in found])
    return [_run(name, path, doc) for name, (_, path, doc) in zip(names, found, strict=True)]


def _run(name: str, path: Path, document: Mapping[str, Any]) -> ComparedRun:
    try:
        report = Report.from_dict(document)
        return ComparedRun(name, str(path), report, figures_of_report(report))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _reports(path: Path) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """Give the reports that a path stands for, each with a name and its file."""
    if path.is_dir():
        path = path / "report.json"
    document = _load(path)
    kind = document.get("kind")
    if kind == POINT_KIND:
        return [(path.stem[:_SHORT], path, _report_of(document, path))]
    if kind != SWEEP_KIND:
        folder = path.resolve().parent.name
        named = folder if path.name == "report.json" and folder else path.stem
        return [(named, path, document)]
    points = document.get("points")
    if not isinstance(points, list):
        raise InputError(f"{path}: no list at points")
    found = []
    for i, point in enumerate(points):
        digest = point.get("digest") if isinstance(point, dict) else None
        if not isinstance(digest, str) or not digest or set(digest) - _DIGITS:
            raise InputError(f"{path}: points[{i}] has no digest")
        if point.get("error"):
            continue
        file = path.parent / "points" / f"{digest}.json"
        settings = point.get("settings")
        if not isinstance(settings, dict):
            raise InputError(f"{path}: points[{i}] has no settings")
        found.append((setting(settings), file, _report_of(_load(file), file)))
    if not found:
        raise InputError(f"{path}: a sweep without a finished point")
    return found


def _report_of(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    report = document.get("report")
    if not isinstance(report, dict):
        raise InputError(f"{path}: a sweep's point without a report")
    return report


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}") from None
    if len(data) > LARGEST:
        raise InputError(f"{path}: more than {LARGEST // 10**6} MB, not a report")
    try:
        document = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not JSON, or damaged ({reason})") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a report: {type(document).__name__}, not an object")
    return document


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} in it: a report has finite numbers only")


def _distinct(names: Sequence[str]) -> list[str]:
    """Number those that come several times.

    >>> _distinct(["a", "b", "a"])
    ['a (1)', 'b', 'a (3)']
    """
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
