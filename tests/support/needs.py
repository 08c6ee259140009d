"""What tests need of a machine beside `make test`'s own installs: skipped where it is absent."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.c99.compiled import compiler

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="no C compiler here (cc, gcc or clang)"
)


def find_program(name: str, install: str) -> str:
    """Find a program on PATH; without it the test is skipped, saying what to install."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed ({install})")
    return found
