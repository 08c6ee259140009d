"""Folders of results, which are written completely and only over results of the same kind."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gatewise.errors import InputError

_REPORT_FILE: Final = "report.json"
TIMINGS_FILE: Final = "timings.toml"


@dataclass(frozen=True)
class OutputFolder:
    """Folder of the results of one kind of run.

    The `kind` in ``report.json`` identifies the folder of an earlier run. `files` are written in
    this order. A folder with a report is complete, because ``report.json`` is the last one.

    >>> DEMO.files[-1], SIMULATION.kind
    ('report.json', 'gatewise-simulation')
    """

    kind: str
    files: tuple[str, ...]

    def check(self, folder: Path) -> None:
        """Refuse a folder that cannot be written, or with files that an earlier run did not write.

        A folder with a report of the same kind may have other files, which stay.
        """
        report_path = folder / _REPORT_FILE
        has_results = _read_kind(report_path) == self.kind
        if not has_results and report_path.exists():
            run_name = self.kind.removeprefix("gatewise-")
            raise InputError(f"{report_path} does not belong to a {run_name}: give another --out")
        existing_folder = folder
        while not existing_folder.exists() and existing_folder != existing_folder.parent:
            existing_folder = existing_folder.parent
        if not existing_folder.is_dir():
            raise InputError(f"{existing_folder} is a file, not a folder: give another --out")
        if existing_folder == folder and not has_results:
            names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
            if names - set(self.files):
                raise InputError(
                    f"{folder} contains other files: give another --out, or an empty folder"
                )
        # try to write, because permissions alone do not tell whether it is possible (as in /proc)
        try:
            tempfile.TemporaryDirectory(dir=existing_folder, prefix=".new.").cleanup()
        except OSError as error:
            raise InputError(
                f"cannot write to {existing_folder} ({error.strerror}): give another --out"
            ) from error

    def write(self, folder: Path, contents: Mapping[str, str | Path]) -> None:
        """Write all contents into the folder; if writing one fails, the folder is unchanged.

        They are written to a temporary folder and then renamed. Results of an earlier run that are
        not in `contents` are removed. Other files stay.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new.") as scratch_folder:
            new_folder = Path(scratch_folder, "new")
            old_folder = Path(scratch_folder, "old")
            new_folder.mkdir()
            old_folder.mkdir()
            for name, content in contents.items():
                if isinstance(content, Path):
                    shutil.copytree(content, new_folder / name)
                else:
                    (new_folder / name).write_text(content, encoding="utf-8")
            try:
                # Move the old report first and the new one last. Even if the process is killed, a
                # report is then never in a folder with files of another run.
                _move(reversed(self.files), folder, old_folder)
                _move(self.files, new_folder, folder)
            except BaseException:
                # `_move` skips contents that had not been moved yet, which the target still has
                _move([name for name in self.files if name in contents], folder, new_folder)
                _move(self.files, old_folder, folder)
                raise


def _move(names: Iterable[str], source: Path, target: Path) -> None:
    """Rename the files that exist in a folder, in order, unless the other folder has them."""
    for name in names:
        if (source / name).exists() and not (target / name).exists():
            (source / name).rename(target / name)


def _read_kind(path: Path) -> str | None:
    """Read the kind of a JSON document; None if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document.get("kind") if isinstance(document, dict) else None


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
        TIMINGS_FILE,
        "report.html",
        "report.json",
    ),
)
#: Results of ``gatewise simulate``.
SIMULATION: Final = OutputFolder(
    "gatewise-simulation",
    (TIMINGS_FILE, "policies.csv", "timeline.csv", "classes.csv", "report.html", "report.json"),
)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows as CSV, with the columns of all rows in their order of appearance.

    A text that a spreadsheet would read as a formula gets an apostrophe in front.

    >>> to_csv([{"a": -1}, {"a": None, "b": "x,y"}, {"b": "=1+1"}])
    'a,b\n-1,\n,"x,y"\n,\'=1+1\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _escape_formula(cell) for name, cell in row.items()} for row in rows)
    return buffer.getvalue()


def _escape_formula(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)  # a number with a sign is not a formula
    except ValueError:
        return f"'{cell}"
    return cell
