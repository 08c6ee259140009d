"""Shared by the tests of live runs."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def nothing_left(processes) -> Iterator[None]:
    """Assert that a test leaves no process behind."""
    before = processes.below()
    yield
    assert processes.below() == before
