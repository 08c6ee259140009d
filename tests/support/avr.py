"""Programs for AVR: skipped without avr-gcc or simavr, and their sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.c99.compiled import STRICT_FLAGS, run_tool

needs_avr_gcc = pytest.mark.skipif(
    shutil.which("avr-gcc") is None, reason="avr-gcc is not installed"
)
needs_simavr = pytest.mark.skipif(shutil.which("simavr") is None, reason="simavr is not installed")


def measure_sections(folder: Path, file: str, *flags: str) -> list[int]:
    """Compile a file; bytes of code with tables, of data and of zeros in RAM."""
    flags = ("-mmcu=atmega1284p", "-Os", *STRICT_FLAGS, *flags)
    run_tool(folder, "avr-gcc", *flags, "-o", "avr.o", "-c", file)
    return [int(n) for n in run_tool(folder, "avr-size", "avr.o").split("\n")[1].split()[:3]]
