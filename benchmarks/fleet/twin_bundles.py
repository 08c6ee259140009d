"""Bundles that the twin benchmark runs, digits and Letters, trained once and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.cache import CACHE, code_version
from benchmarks.data import problems
from gatewise.console import note
from gatewise.errors import InputError
from gatewise_export import Bundle, pack
from gatewise_export.bundle.manifest import SCHEMA_VERSION
from gatewise_training.data import datasets

NAMES: Final = ("digits", "letters")
#: How each is fitted: about a fifth of the rows reaches the cloud, and several stages stop.
PARAMS: Final[dict[str, dict[str, Any]]] = {
    "digits": {"n_stages": 2, "families": ("linear",), "offload_rate": 0.25},
    "letters": {"n_stages": 3, "budget": 11.6},
}
TREES: Final = 100


@dataclass(frozen=True)
class Subject:
    """A packed cascade, and rows that it has not seen."""

    name: str
    bundle: Bundle
    rows: NDArray[np.float32]
    truth: NDArray[np.int64]  # class indices
    about: dict[str, Any]  # how it was made


def subject(name: str) -> Subject:
    """Get one from the cache, or train and pack it; without its data file an InputError."""
    X, y, train, test = _data(name)
    about = {
        "data": name,
        "sha256": hashlib.sha256(X.tobytes() + y.tobytes()).hexdigest()[:16],
        "method": "staged",
        "params": {key: str(value) for key, value in PARAMS[name].items()},
        "high_cost_model": f"ExtraTreesClassifier({TREES})",
        "rows": {"train": len(train), "test": len(test)},
    }
    code = code_version("gatewise_training.cascades.staged")
    decides = json.dumps([about, code, SCHEMA_VERSION], sort_keys=True)
    digest = hashlib.sha256(decides.encode()).hexdigest()[:16]
    folder = CACHE / "twin" / f"{name}.{digest}"
    if not folder.is_dir():
        note(f"training {name}")
        _train(X, y, train, folder, PARAMS[name])
    return Subject(name, Bundle.open(folder), X[test], y[test], about)


def _data(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64], Any, Any]:
    """Rows and class indices, and which are for training and testing."""
    if name == "digits":
        data = datasets.load("digits")
        X, y = data.X.astype(np.float32), data.y.astype(np.int64)
        deal = np.random.default_rng(0).permutation(len(y))
        return X, y, deal[:900], deal[1200:]
    if name == "letters":
        path = problems.data_folder() / "letter.npz"
        if not path.is_file():
            raise InputError(f"letters: {path} is not there; set GATEWISE_DATA to its folder")
        with np.load(path, allow_pickle=False) as file:
            X, y = file["X"].astype(np.float32), file["y"].astype(np.int64)
        return X, y, np.arange(8000), np.arange(16000, 20000)
    raise InputError(f"no bundle {name!r}; there are {', '.join(NAMES)}")


def _train(
    X: NDArray[np.float32], y: NDArray[np.int64], train: Any, folder: Path, params: dict[str, Any]
) -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_training import methods

    f0 = ExtraTreesClassifier(TREES, random_state=0).fit(X[train], y[train])
    system: Any = methods.cascade("staged", high_cost_model=f0, random_state=0, **params).fit(
        X[train], y[train]
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new."))
    try:
        pack(system, made / "bundle", sample=X[train[:16]])
        # Whole or not at all: a run that is broken off leaves no half of a bundle.
        os.replace(made / "bundle", folder)
    finally:
        shutil.rmtree(made)
