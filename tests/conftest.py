"""Configuration and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from tests.support.once import MakeOnce

# A shell that starts the tests in the background makes them and their child processes ignore
# SIGINT, but some tests test Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every run tries the same examples, so that a change cannot fail by an example that has nothing to
# do with it. `make test-search` tries others.
settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,  # the time of an example depends on the load of the machine
    max_examples=50,  # half of the default, so that all tests take minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("same"), derandomize=False, max_examples=500
)
settings.load_profile("same")

#: Names of the files with tests that take ten seconds or longer.
SLOW_FILES = (
    "test_readme.py", "test_docs.py", "test_gallery.py", "test_oip.py", "test_bench_twin.py",
    "test_rollout_of_devices.py", "test_deployment.py", "test_broker_control.py", "test_demo.py",
    "test_examples_of_signals.py", "test_single_models.py", "test_checkup.py",
)  # fmt: skip


def pytest_configure() -> None:
    """Let only one test process compile each kernel."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.support.kernel_cache import lock_compilation

        lock_compilation()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """Collect no doctests from test files, which have none."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put some of the longest tests first for each process, so that all end at about the same time.

    xdist gives each process an equal part of the items, in their order.
    """
    long_tests = [item for item in items if item.path.name in SLOW_FILES]
    other_tests = iter([item for item in items if item.path.name not in SLOW_FILES])
    n_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    tests_of_processes = [long_tests[number::n_processes] for number in range(n_processes)]
    for tests_of_process in tests_of_processes:
        tests_of_process.extend(
            islice(other_tests, max(0, len(items) // n_processes - len(tests_of_process)))
        )
    items[:] = [
        item for tests_of_process in tests_of_processes for item in tests_of_process
    ] + list(other_tests)


def pytest_collectstart() -> None:
    """Collect tests without garbage collection, which would visit all modules again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the half million objects of modules and tests from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def two_folds() -> Iterator[None]:
    """Cross-fit in two folds instead of five, for modules that do not test accuracies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatewise_training.data.validation_split.N_FOLDS", 2)
        yield


@pytest.fixture(scope="module")
def quick_timings() -> Iterator[None]:
    """Time high-cost models for 30 ms instead of 300, for modules that do not test times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatewise_sim.experiment.row_table._TIMING_SECONDS", 0.03)
        yield


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Fixture that makes fitted systems and bundles once in a run: ``make_once(name, make)``."""
    return MakeOnce(tmp_path_factory)
