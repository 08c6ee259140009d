"""Finished points on disk: one file each, named by what was simulated.

A point's name is a hash of the whole scenario, the bundle, the rows and every other file that the
scenario names, so a sweep that was broken off goes on where it stopped, another sweep takes what
it shares with an earlier one, and nothing is taken for what it is not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gatewise import __version__
from gatewise.console import plain
from gatewise_sim.report.model import POINT_KIND, SWEEP_KIND
from gatewise_sim.report.output import SIMULATION, check_folder, json_text, kind_of, write_text

CALIBRATION: Final = "sweep-calibration.json"
"""Service times that were measured when the sweep began."""

_FILES: Final = ("points", CALIBRATION, "sweep.json", "sweep.csv", "sweep.html")
_REPLAY: Final = "replay:"
#: A function of a policy, a backend or a block.
_FUNCTION: Final = re.compile(r"(?:python:|[^=]*=)?([\w.]+):[\w.]+")


class Fingerprints:
    """Hashes of jobs; each file is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def contents(self, job: object) -> dict[str, Any]:
        """A job's fields, and the hashes of all files that they name."""
        fields = _plain(job)
        texts = sorted({text for text in _texts(fields) if _is_file(text)})
        return {
            "gatewise": __version__,
            "job": fields,
            "files": {text: self._hash(Path(text)) for text in texts},
        }

    def digest(self, job: object) -> str:
        """Name of a job: 32 hexadecimal digits."""
        text = json.dumps(self.contents(job), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _hash(self, path: Path) -> str:
        if path not in self._known:
            self._known[path] = _tree_hash(path)
        return self._known[path]


class SweepFolder:
    """The folder of a sweep, made if need be; one that holds other files is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points = folder / "points"
        # A sweep may go beside a simulation: both write to sim-out by default.
        swept = kind_of(folder / "sweep.json") == SWEEP_KIND
        check_folder(
            folder, _FILES, ours=swept or kind_of(folder / "report.json") == SIMULATION.kind
        )
        check_folder(self.points, (), ours=True)
        self.points.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a point is kept."""
        return self.points / f"{digest}.json"

    def find(self, digest: str) -> dict[str, Any] | None:
        """Read the report of a finished point; None if there is none, or the file is damaged."""
        try:
            document = json.loads(self.path(digest).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or document.get("kind") != POINT_KIND:
            return None
        report = document.get("report")
        return report if document.get("digest") == digest and isinstance(report, dict) else None

    def keep(self, digest: str, what: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Write a finished point, whole or not at all."""
        document = {"kind": POINT_KIND, "digest": digest, "of": what, "report": report}
        write_text(self.path(digest), json_text(document))


def _plain(value: object) -> Any:
    if callable(as_dict := getattr(value, "as_dict", None)):  # a scenario's, without passwords
        return plain(as_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return plain(value)


def _texts(value: Any) -> Iterator[str]:
    """Every text in the fields of a job that may name a file."""
    if isinstance(value, str):
        if value.startswith(_REPLAY):  # a trace is named within a workload: replay:trace.csv:...
            yield value.removeprefix(_REPLAY).partition(":")[0]
        elif function := _FUNCTION.fullmatch(value):
            yield f"{function[1].replace('.', '/')}.py"
            yield getattr(sys.modules.get(function[1]), "__file__", None) or ""
        else:
            yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _is_file(text: str) -> bool:
    try:
        path = Path(text)
        return path.is_file() or (path / "manifest.json").is_file()
    except (OSError, ValueError):  # too long for a name, or a zero byte
        return False


def _tree_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a bundle's files."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for part in sorted(p for p in path.rglob("*") if p.is_file()):
        whole.update(f"{part.relative_to(path).as_posix()}\0{_tree_hash(part)}\n".encode())
    return whole.hexdigest()
