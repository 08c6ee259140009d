"""Fixtures of the hand-made bundle and of fitted systems."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from gatewise_export import Bundle, pack
from tests.support import processes
from tests.support.fitted_systems import SYSTEM_MAKERS, FittedSystem
from tests.support.hand_made_bundle import (
    DOCUMENT,
    FILES,
    Document,
    complete_document,
    write_directory,
)
from tests.support.once import MakeOnce


@pytest.fixture(scope="session")
def pristine() -> Document:
    """A valid manifest as a JSON document, which tests must not change."""
    return complete_document(DOCUMENT, FILES)


@pytest.fixture
def document(pristine: Document) -> Document:
    """A valid manifest that tests may change."""
    return copy.deepcopy(pristine)


@pytest.fixture
def write_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes a bundle's directory; its graph files hold plain text."""

    def write_here(document: Document = DOCUMENT, files: dict[str, bytes] = FILES) -> Path:
        return write_directory(tmp_path / "bundle", complete_document(document, files), files)

    return write_here


# -- fitted systems ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fit_system(make_once: MakeOnce) -> Callable[[str], FittedSystem]:
    """Function that returns a fitted system by name; each system is fitted once."""
    return functools.cache(
        lambda name: make_once(f"fitted-{name}", lambda _: SYSTEM_MAKERS[name]())
    )


@pytest.fixture(scope="session", params=SYSTEM_MAKERS)
def system_name(request: pytest.FixtureRequest) -> str:
    """Name of each fitted system in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def fitted(system_name: str, fit_system: Callable[[str], FittedSystem]) -> FittedSystem:
    """Each fitted system in turn."""
    return fit_system(system_name)


@pytest.fixture(scope="session")
def packed(system_name: str, fitted: FittedSystem, make_once: MakeOnce) -> Bundle:
    """Each fitted system as a bundle, which tests must not change."""

    def make(folder: Path) -> Bundle:
        path = folder / "bundle"
        return pack(fitted.system, path, sample=fitted.rows, name="wards", version="7")

    return make_once(f"packed-{system_name}", make)


@pytest.fixture
def cancer(fit_system: Callable[[str], FittedSystem]) -> FittedSystem:
    """The staged binary system."""
    return fit_system("cancer")


# -- the command line ----------------------------------------------------------------------


@pytest.fixture
def run() -> Callable[..., tuple[int, str, str]]:
    """Function that runs a command and returns exit status, standard output and standard error."""

    def call(*args: object) -> tuple[int, str, str]:
        done = processes.run_in_process(*args)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def refused() -> Callable[..., str]:
    """The function :func:`tests.support.processes.assert_command_refused`."""
    return processes.assert_command_refused
