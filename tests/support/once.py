"""Objects that are slow to make, shared by all processes of a test run."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class MakeOnce:
    """Cache of fitted systems and bundles by name, made by the first process that needs them.

    Each call returns a new copy, so that tests cannot affect each other.

    Parameters
    ----------
    factory : pytest.TempPathFactory
        Factory of the test run, whose folder contains the cache.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        base = factory.getbasetemp()
        # A worker of xdist has its own folder below that of the run.
        self._folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
        self._folder.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Load the object of this name, or make it; `make` gets a folder for its files."""
        cached = self._folder / f"{name}.pickle"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it at the end of the process
            if not cached.exists():
                files = self._folder / name
                files.mkdir(exist_ok=True)
                partial = cached.with_suffix(".part")
                partial.write_bytes(pickle.dumps(make(files)))
                partial.replace(cached)
            return pickle.loads(cached.read_bytes())
