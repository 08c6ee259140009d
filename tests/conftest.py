"""What every test relies on."""

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

# A shell that starts the tests in the background has them ignore SIGINT, and so would every
# process that they start; Ctrl-C is among the things tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine's other load.
settings.register_profile(
    "any load", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any load")


LONGEST = (
    "test_readme.py", "test_docs.py", "test_gallery.py", "test_oip.py", "test_bench_twin.py",
    "test_rollout_of_devices.py", "test_deployment.py", "test_broker_control.py", "test_demo.py",
    "test_examples_of_signals.py", "test_notebooks.py", "test_single_models.py", "test_checkup.py",
)  # fmt: skip
"""Files with tests of ten seconds and more."""


def pytest_configure() -> None:
    """Compile each kernel in one of the test processes."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.support.kernel_cache import compile_in_turn

        compile_in_turn()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """Look for examples in the packages alone: docstrings of tests have none."""
    return [c for c in (yield) if not isinstance(c, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process begin with some of the longest: the last one keeps the others waiting.

    xdist deals the items out in as many equal runs as there are processes.
    """
    longest = [item for item in items if item.path.name in LONGEST]
    others = iter([item for item in items if item.path.name not in LONGEST])
    n_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares = [longest[k::n_processes] for k in range(n_processes)]
    for share in shares:
        share.extend(islice(others, max(0, len(items) // n_processes - len(share))))
    items[:] = [item for share in shares for item in share] + list(others)


def pytest_collection_finish() -> None:
    """Spare the collector the half million objects of modules and tests that stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Make fitted systems and bundles once in a run: ``make_once(name, make)``."""
    return MakeOnce(tmp_path_factory)
