"""Fixtures for the commands: a table of wines and a bundle trained on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import run_in_process
from tests.support.small_fits import fast_fits
from tests.support.wine_table import COSTS, load_wine_table


@pytest.fixture(autouse=True)
def small_fits() -> Iterator[None]:
    """Make all fits small."""
    with fast_fits():
        yield


@pytest.fixture(scope="session")
def wine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table, prices and a trained bundle."""
    path = tmp_path_factory.mktemp("home")
    load_wine_table().to_csv(path / "wine.csv", index=False)
    (path / "prices.toml").write_text(COSTS)
    (path / "settings.toml").write_text("test_size = 0.2\n")
    command = ["train", f"{path}/wine.csv", "--target", "cultivar", "--method", "adapt-gbrt"]
    command += ["--costs", f"{path}/prices.toml", "--max-loss", "0.02"]
    command += ["--settings", f"{path}/settings.toml"]
    with fast_fits():
        process = run_in_process(*command, "--out", f"{path}/bundle", "--json")
    assert (process.returncode, process.stderr) == (0, "")
    (path / "result.json").write_text(process.stdout)
    return path


@pytest.fixture
def bundle(wine_folder: Path, tmp_path: Path) -> Path:
    """A copy of the trained bundle, which tests may change."""
    return Path(shutil.copytree(wine_folder / "bundle", tmp_path / "bundle"))
