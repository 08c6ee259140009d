"""Folders of results: written whole, and never over files of other programs."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gatewise.errors import InputError
from gatewise_export.bundle.storage import replace_file

_REPORT: Final = "report.json"


@dataclass(frozen=True)
class OutputFolder:
    """Results of one kind of run.

    The `kind` in its report marks a folder as one of ours. `files` are all that it may write, in
    this order; ``report.json`` is the last: a folder that has one is complete.

    >>> DEMO.files[-1], SIMULATION.kind
    ('report.json', 'gatewise-simulation')
    """

    kind: str
    files: tuple[str, ...]

    def check(self, folder: Path) -> None:
        """Refuse a folder that holds other files than an earlier run's output."""
        ours = kind_of(folder / _REPORT) == self.kind
        if not ours and (folder / _REPORT).exists():
            run = self.kind.removeprefix("gatewise-")
            raise InputError(f"{folder}/{_REPORT} is not a {run}'s: give another --out")
        check_folder(folder, self.files, ours=ours)

    def write(self, folder: Path, contents: Mapping[str, str | Path]) -> None:
        """Put all contents into the folder, or none of them.

        They are written beside their places first, so that only a rename can still fail. Results
        of an earlier run that are not among the contents are removed; other files stay.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new.") as scratch:
            new = Path(scratch, "new")
            old = Path(scratch, "old")
            new.mkdir()
            old.mkdir()
            for name, content in contents.items():
                if isinstance(content, Path):
                    shutil.copytree(content, new / name)
                else:
                    write_text(new / name, content)
            for name in self.files:
                target = folder / name
                # A file's rename replaces it at once; a directory must be out of the way.
                if target.is_dir() or (name not in contents and target.exists()):
                    target.rename(old / name)
                if name in contents:
                    (new / name).replace(target)


def kind_of(path: Path) -> str | None:
    """Read the kind of a JSON document; None without a document."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document.get("kind") if isinstance(document, dict) else None


def check_folder(folder: Path, files: Collection[str], *, ours: bool) -> None:
    """Refuse a folder that cannot be written to, or has other files and is not one of ours."""
    parent = folder
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{parent} is a file, not a folder: give another --out")
    if parent == folder and not ours:
        present = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
        if present - set(files):
            raise InputError(f"{folder} holds other files: give another --out, or an empty folder")
    try:  # rights alone do not tell: /proc has them, and takes no folder
        tempfile.TemporaryDirectory(dir=parent, prefix=".new.").cleanup()
    except OSError as error:
        raise InputError(
            f"{parent} cannot be written to ({error.strerror}): give another --out"
        ) from error


#: Results of ``gatewise demo``.
DEMO: Final = OutputFolder(
    "gatewise-demo",
    (
        "arrivals.csv",
        "bundle",
        "classes.csv",
        "frontier.svg",
        "instances.csv",
        "policies.csv",
        "timeline.csv",
        "timings.toml",
        "report.html",
        "report.json",
    ),
)
#: Results of ``gatewise simulate``.
SIMULATION: Final = OutputFolder(
    "gatewise-simulation",
    ("timings.toml", "policies.csv", "timeline.csv", "classes.csv", "report.html", "report.json"),
)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    if path.is_dir():  # a path such as "." has no name to replace
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    replace_file(path, text.encode())


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows as CSV, with the columns of all rows in their order of appearance.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.

    >>> to_csv([{"a": -1}, {"a": None, "b": "x,y"}, {"b": "=1+1"}])
    'a,b\n-1,\n,"x,y"\n,\'=1+1\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _no_formula(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
