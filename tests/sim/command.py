"""The command as a user runs it, and files of a small system to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GATEWISE = (sys.executable, "-m", "gatewise")


def gatewise(folder: Path | None, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder to its end."""
    return subprocess.run(
        [*GATEWISE, *args],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=290,
    )


def write_rows(path: Path, small: Any) -> Path:
    """Write the rows of the small system, with their labels, as CSV."""
    lines = [",".join([*small.bundle.manifest.feature_names, "label"])]
    for row, label in zip(small.rows.tolist(), small.truth.tolist(), strict=True):
        lines.append(",".join([*(f"{v:g}" for v in row), str(label)]))
    path.write_text("\n".join(lines) + "\n")
    return path
