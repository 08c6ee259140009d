"""Bundles on digits and Letters for the benchmarks of fleets, with rows for the devices."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks.cache import CACHE, code_version
from benchmarks.data import problems
from gatewise.console import note
from gatewise_export import Bundle, pack
from gatewise_training import StagedCascade

#: Settings with several answering stages that offload about a fifth of the rows.
CASCADE_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "digits": {"n_stages": 2, "families": ("linear",), "offload_rate": 0.25},
    "letters": {"n_stages": 3, "budget": 11.6},
}


@dataclass(frozen=True, eq=False)
class FleetBundle:
    """Packed cascade, with unseen rows and their class indices `truth`."""

    name: str
    bundle: Bundle
    rows: NDArray[np.float32]
    truth: NDArray[np.int64]


def fleet_bundle(name: str) -> FleetBundle:
    """Read a bundle from the cache, or fit it; raise InputError without its data file."""
    X, y, n_train, first_row = _read_rows(name)
    folder = CACHE / "fleet" / f"{name}.{code_version('gatewise_training.cascades.staged')}"
    if not (folder / "manifest.json").is_file():
        note(f"training {name}")
        shutil.rmtree(folder, ignore_errors=True)
        high_cost_model = ExtraTreesClassifier(100, random_state=0).fit(X[:n_train], y[:n_train])
        system = StagedCascade(high_cost_model, random_state=0, **CASCADE_SETTINGS[name]).fit(
            X[:n_train], y[:n_train]
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        pack(system, folder, sample=X[:16], name=name)
    return FleetBundle(name, Bundle.open(folder), X[first_row:], y[first_row:])


def _read_rows(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64], int, int]:
    """Read rows, class indices, the number of training rows, and the first row of the fleet.

    The fleet of Letters has the test rows of the authors, that of digits a third of all rows.
    """
    if name == "letters":
        with np.load(problems.data_file("letter")) as file:
            X, y = file["X"], file["y"]
        n_train, first_row = 8000, 16000
    else:
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y = X[order], y[order]
        n_train, first_row = 900, 1200
    return X.astype(np.float32), y.astype(np.int64), n_train, first_row
