"""What every test relies on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A shell that starts the tests in the background has them ignore SIGINT, and so would every
# process that they start; Ctrl-C is among the things tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def random_trees() -> Callable[..., tuple[Any, Any]]:
    """Give :func:`tests.support.trees.random_trees`, loaded when a test wants it."""
    from tests.support import trees

    return trees.random_trees


#: Files that fit models or start processes in nearly every test: too long for `make test-fast`.
SLOW_FILES = {
    "benchmarks/test_bench_peers.py",
    "benchmarks/test_bench_ranking.py",
    "cloud/test_cloud_broker.py",
    "cloud/test_cloud_gateway.py",
    "cloud/test_cloud_supervisor.py",
    "cloud/test_cloud_worker.py",
    "edge/service/test_cli.py",
    "edge/link/test_mqtt.py",
    "edge/test_with_cloud.py",
    "edge/update/test_updater.py",
    "security/test_announcements.py",
    "security/test_broker.py",
    "sim/test_sim_doctor.py",
    "sim/fleet/test_run.py",
    "sim/fleet/estimate/test_result.py",
    "sim/fleet/estimate/test_sampling.py",
    "sim/fleet/workload/test_arrivals.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of whole files out of the fast suite."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
