"""The command line, a table of wines and what it learns of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_training import methods
from tests.support.processes import run_here
from tests.support.wine_table import COSTS, wine

Run = Callable[..., tuple[int, str, str]]

FOREST = {"high_cost_model": ExtraTreesClassifier(30, random_state=0)}
#: Few stages, trees and penalties: what is tested is the way from a table to a bundle and back.
SMALL: dict[str, dict[str, Any]] = {
    "staged": FOREST | {"n_stages": 2, "effort": "low", "max_trees": 20},
    "staged-lazy": FOREST | {"n_stages": 2, "effort": "low", "max_trees": 20},
    "adapt-gbrt": FOREST | {"p_full": (0.3,), "penalties": (0.01,), "n_rounds": 10},
    "adapt-lin": FOREST | {"p_full": (0.3,), "penalties": (0.05,), "n_starts": 1},
    "confidence": FOREST | {"low_cost_model": "linear", "n_subsets": 3},
    "cegb": {"penalties": (0.001,), "n_rounds": 15},
    "greedy-miser": {"penalties": (0.02,), "n_rounds": 20},
}


@contextmanager
def _small_fits() -> Iterator[None]:
    make = methods.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            methods, "make", lambda name, **how: make(name, **(SMALL.get(name, {}) | how))
        )
        yield


@pytest.fixture(autouse=True)
def small_fits() -> Iterator[None]:
    """Fit little, whatever is trained."""
    with _small_fits():
        yield


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table, prices and a trained bundle."""
    path = tmp_path_factory.mktemp("home")
    wine().to_csv(path / "wine.csv", index=False)
    (path / "prices.toml").write_text(COSTS)
    args = ["train", f"{path}/wine.csv", "--target", "cultivar", "--method", "adapt-gbrt"]
    args += ["--costs", f"{path}/prices.toml", "--max-loss", "0.02", "--test-size", "0.2"]
    with _small_fits():
        done = run_here(*args, "--out", f"{path}/bundle", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (path / "result.json").write_text(done.stdout)
    return path


@pytest.fixture
def bundle(home: Path, tmp_path: Path) -> Path:
    """A copy of the trained bundle."""
    return Path(shutil.copytree(home / "bundle", tmp_path / "bundle"))


@pytest.fixture
def run() -> Run:
    """A function that runs the command line: exit status, standard output, standard error."""

    def call(*args: object) -> tuple[int, str, str]:
        done = run_here(*args)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """A function that runs what must end with status 2, and one line on standard error: it."""

    def call(*args: object) -> str:
        status, out, err = run(*args)
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err

    return call
