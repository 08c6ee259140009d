"""Data sets: small ones of the repository, and those beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.data.fetching import find_file


def shared_data(name: str) -> Path:
    """Find a file in the data folders; without it the test is skipped."""
    path = find_file(name.removesuffix(".npz"))
    if path is None:
        pytest.skip(f"{name} is not there; set GATEWISE_DATA to its folder")
    return path
