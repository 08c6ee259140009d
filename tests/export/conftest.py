"""Fixtures for the hand-made bundle, fitted systems and the command line."""

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
def unchanged_document() -> Document:
    """A valid manifest as a JSON document, which tests must not change."""
    return complete_document(DOCUMENT, FILES)


@pytest.fixture
def document(unchanged_document: Document) -> Document:
    """A valid manifest that tests may change."""
    return copy.deepcopy(unchanged_document)


@pytest.fixture
def write_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes a bundle's directory; its graph files hold plain text."""

    def write_bundle(document: Document = DOCUMENT, files: dict[str, bytes] = FILES) -> Path:
        return write_directory(tmp_path / "bundle", complete_document(document, files), files)

    return write_bundle


# -- fitted systems ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fit_system(make_once: MakeOnce) -> Callable[[str], FittedSystem]:
    """Function that returns a fitted system by name; each system is fitted once."""
    # `make_once` unpickles a new copy at each call; a process needs only one.
    return functools.cache(
        lambda name: make_once(f"fitted-{name}", lambda _: SYSTEM_MAKERS[name]())
    )


@pytest.fixture(scope="session", params=SYSTEM_MAKERS)
def system_name(request: pytest.FixtureRequest) -> str:
    """Name of each fitted system in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def fitted_system(system_name: str, fit_system: Callable[[str], FittedSystem]) -> FittedSystem:
    """Each fitted system in turn."""
    return fit_system(system_name)


@pytest.fixture(scope="session")
def packed_bundle(system_name: str, fitted_system: FittedSystem, make_once: MakeOnce) -> Bundle:
    """Each fitted system as a bundle, which tests must not change."""

    def pack_system(folder: Path) -> Bundle:
        path = folder / "bundle"
        return pack(
            fitted_system.system, path, sample=fitted_system.rows, name="wards", version="7"
        )

    return make_once(f"packed-{system_name}", pack_system)


@pytest.fixture
def cancer_system(fit_system: Callable[[str], FittedSystem]) -> FittedSystem:
    """The staged binary system."""
    return fit_system("cancer")


# -- the command line ----------------------------------------------------------------------


@pytest.fixture
def run_command() -> Callable[..., tuple[int, str, str]]:
    """Function that runs a command and returns exit status, standard output and standard error."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        process = processes.run_in_process(*arguments)
        return process.returncode, process.stdout, process.stderr

    return run_command


@pytest.fixture
def assert_refused() -> Callable[..., str]:
    """The function :func:`tests.support.processes.assert_command_refused`."""
    return processes.assert_command_refused
