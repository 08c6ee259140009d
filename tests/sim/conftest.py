"""Fixtures for the tests of the simulator: a small system, a demo, processes and a browser."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import processes
from tests.support.digits_system import fit_digits_system
from tests.support.once import MakeOnce
from tests.support.processes import find_descendants, read_command_line, run_in_process
from tests.support.small_fits import fast_fits

command = processes.command


@pytest.fixture(scope="session")
def digits(make_once: MakeOnce) -> SimpleNamespace:
    """A small fitted system, its bundle, and test rows as arrays and as a CSV file."""
    return make_once("digits-system", fit_digits_system)


@pytest.fixture(scope="session")
def table(digits: SimpleNamespace) -> Any:
    """Outcomes of the small system's rows."""
    from gatewise_sim.experiment.row_table import make_row_table

    return make_row_table(digits.bundle, digits.rows, digits.truth)[0]


@pytest.fixture
def small_fits() -> Iterator[None]:
    """Use fast fits in the commands that this process runs."""
    with fast_fits():
        yield


@pytest.fixture(scope="session")
def quick_demo(make_once: MakeOnce) -> SimpleNamespace:
    """A demo of 40 instances: its arguments, its folder and its output."""

    def run_demo(folder: Path) -> SimpleNamespace:
        arguments = (
            "demo", "--dataset", "breast_cancer", "--method", "confidence", "--link", "none",
            "--instances", "40", "--devices", "2", "--json",
        )  # fmt: skip
        with fast_fits():
            process = run_in_process(*arguments, folder=folder)
        assert process.returncode == 0, process.stderr
        return SimpleNamespace(
            arguments=arguments, folder=folder / "demo-out", output=process.stdout
        )

    return make_once("quick-demo", run_demo)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert that a test leaves no process behind."""
    pids_before = find_descendants()
    yield
    assert {
        pid: read_command_line(pid) for pid in find_descendants(excluded_pids=pids_before)
    } == {}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser, in which each test closes its pages."""
    from tests.sim.chromium import Chromium, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("needs a chromium or chrome on the path: apt install chromium")
    browser = Chromium(program)
    yield browser
    browser.close()
