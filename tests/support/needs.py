"""Programs that `make test` does not install; tests that need them are skipped without them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.c99.compiled import compiler_command

needs_compiler = pytest.mark.skipif(
    compiler_command() is None, reason="no C compiler here (cc, gcc or clang)"
)


def find_program(name: str, install: str) -> str:
    """Find a program on PATH, or skip the test with the advice `install`."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed ({install})")
    return path


def install_from_npm(folder: Path, *packages: str) -> None:
    """Install packages into a folder without their scripts; skip the test if npm cannot."""
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        error = process.stderr.strip()[-120:]
        pytest.skip(f"npm cannot install {' and '.join(packages)}: {error}")
