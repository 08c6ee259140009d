"""What is costly to make: made once in a run of the suite, for all of its processes."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class MakeOnce:
    """Fitted systems and bundles by name, made by whichever test process needs them first.

    Each call gives a copy of its own, so that what one test changes no other sees.

    Parameters
    ----------
    factory : pytest.TempPathFactory
        Under whose folder of this run they are kept.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        base = factory.getbasetemp()
        # A process of xdist has a folder of its own below that of the run.
        self._folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
        self._folder.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Load what has this name, or make it; `make` gets a folder whose files are kept."""
        kept = self._folder / f"{name}.pickle"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
            if not kept.exists():
                files = self._folder / name
                files.mkdir(exist_ok=True)
                kept.with_suffix(".part").write_bytes(pickle.dumps(make(files)))
                kept.with_suffix(".part").replace(kept)
            return pickle.loads(kept.read_bytes())
