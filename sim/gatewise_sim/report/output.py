"""The folder that a run leaves behind: written whole, and never over somebody's own files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gatewise_training.errors import InputError

__all__ = ["FILES", "REPORT_KIND", "check_folder", "write_folder", "write_text"]

REPORT_KIND: Final = "gatewise-demo"
"""The value of ``kind`` in a report: by it a folder is known as one of ours."""

BUNDLE: Final = "bundle"
FILES: Final = (BUNDLE, "instances.csv", "frontier.svg", "report.html", "report.json")
"""What is written, in this order: a folder with a report is complete."""


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than an earlier run's output.

    Raises
    ------
    InputError
        If it is a file, cannot be written, or is neither empty nor one of ours.
    """
    if folder.is_dir():
        present = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
        if present - set(FILES) and not _is_ours(folder):
            raise InputError(f"{folder} holds other files: give another --out, or an empty folder")
        if "report.json" in present and not _is_ours(folder):
            raise InputError(f"{folder}/report.json is not a demo's: give another --out")
        place = folder
    else:
        place = folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if not place.is_dir():
            raise InputError(f"{place} is a file, not a folder: give another --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{place} cannot be written to: give another --out")


def write_folder(folder: Path, bundle: Path, texts: Mapping[str, str]) -> None:
    """Put a bundle and text files into the folder, each whole or not at all.

    Parameters
    ----------
    folder : Path
        Made if need be; see :func:`check_folder`.
    bundle : Path
        Directory to copy.
    texts : mapping of str to str
        The other names of :data:`FILES` to their contents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".bundle.") as beside:
        new, old = Path(beside, "new"), Path(beside, "old")
        shutil.copytree(bundle, new)
        if (folder / BUNDLE).exists():
            (folder / BUNDLE).rename(old)
        new.rename(folder / BUNDLE)
    for name in FILES[1:]:
        write_text(folder / name, texts[name])


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: beside it first, then renamed over it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # A temporary file is for its owner's eyes; a report is an ordinary file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _is_ours(folder: Path) -> bool:
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("kind") == REPORT_KIND
