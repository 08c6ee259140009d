"""Data sets that are no part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("GATEWISE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)


def shared_data(name: str) -> Path:
    """Find a file beside the repository or in GATEWISE_DATA; without it the test is skipped."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; set GATEWISE_DATA to its folder")
    return path
