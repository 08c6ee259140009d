"""Shared by the tests of live runs."""

from collections.abc import Iterator

import pytest

from tests.support.processes import below


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert that a test leaves no process behind."""
    before = below()
    yield
    assert below() == before
