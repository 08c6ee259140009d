"""The command of the compiler for this computer."""

from __future__ import annotations

import pytest

from gatewise_export.c99.targets import host_compiler


@pytest.mark.parametrize(
    ("value", "command"),
    [("", ("cc", "-O2")), ("ccache gcc", ("ccache", "gcc", "-O2"))],
)
def test_compiler_is_that_of_the_environment_unless_it_is_empty(value, command, monkeypatch):
    monkeypatch.setenv("CC", value)
    assert host_compiler() == command
