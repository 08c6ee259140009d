"""Data sets in the repository and in the data folders next to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.data.fetching import find_file


def find_shared_file(name: str) -> Path:
    """Find a file in the data folders, or skip the test."""
    path = find_file(name.removesuffix(".npz"))
    if path is None:
        pytest.skip(f"{name} does not exist; set GATEWISE_DATA to its folder")
    return path
