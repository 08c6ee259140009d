"""What every test relies on."""

from __future__ import annotations

import signal

import pytest

from tests.support.once import MakeOnce

# A shell that starts the tests in the background has them ignore SIGINT, and so would every
# process that they start; Ctrl-C is among the things tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Make fitted systems and bundles once in a run: ``make_once(name, make)``."""
    return MakeOnce(tmp_path_factory)
