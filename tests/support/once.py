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
    folder_factory : pytest.TempPathFactory
        Factory of the test run, whose folder contains the cache.
    """

    def __init__(self, folder_factory: pytest.TempPathFactory) -> None:
        run_folder = folder_factory.getbasetemp()
        # A worker of xdist has its own folder below that of the run.
        self._folder = (
            run_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else run_folder
        ) / "once"
        self._folder.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Load the object of this name, or make it; `make` gets a folder for its files."""
        cache_file = self._folder / f"{name}.pickle"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it at the end of the process
            if not cache_file.exists():
                object_folder = self._folder / name
                object_folder.mkdir(exist_ok=True)
                partial_file = cache_file.with_suffix(".part")
                partial_file.write_bytes(pickle.dumps(make(object_folder)))
                partial_file.replace(cache_file)
            return pickle.loads(cache_file.read_bytes())
