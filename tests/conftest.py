"""What every test relies on."""

from __future__ import annotations

import signal

import pytest
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


LONGEST = ("test_readme.py", "test_rollout.py", "test_docs.py", "test_bench_twin.py")
"""Files with tests of half a minute and more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest: at the end they would keep all other processes waiting."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Make fitted systems and bundles once in a run: ``make_once(name, make)``."""
    return MakeOnce(tmp_path_factory)
