"""Programs for AVR: skipped without avr-gcc or simavr, their sizes, and self-tests in simavr."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from benchmarks.c99.compiled import STRICT_FLAGS, run_tool

needs_avr_gcc = pytest.mark.skipif(
    shutil.which("avr-gcc") is None, reason="avr-gcc is not installed"
)
needs_simavr = pytest.mark.skipif(shutil.which("simavr") is None, reason="simavr is not installed")
#: Program that prints the number that a self-test returns.
MAIN: Final = """\
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>
#include <stdlib.h>

DECLARATIONS

static void print(const char *text)
{
    for (; *text; text++) {
        while (!(UCSR0A & (1 << UDRE0)))
            ;
        UDR0 = *text;
    }
}

int main(void)
{
    char count[8];
    UCSR0B = 1 << TXEN0;
    print("differ: ");
    print(itoa(CALL, count, 10));
    print("\\n");
    cli();
    sleep_enable();
    sleep_cpu(); /* ends the emulation */
    return 0;
}
"""
SIMAVR: Final = ("simavr", "-m", "atmega1284p", "-f", "16000000")


def measure_sections(folder: Path, file: str, *flags: str) -> list[int]:
    """Compile a file; bytes of code with tables, of data and of zeros in RAM."""
    flags = ("-mmcu=atmega1284p", "-Os", *STRICT_FLAGS, *flags)
    run_tool(folder, "avr-gcc", *flags, "-o", "avr.o", "-c", file)
    return [int(n) for n in run_tool(folder, "avr-size", "avr.o").split("\n")[1].split()[:3]]


def count_differing(folder: Path, call: str, declarations: str, *files: str) -> int:
    """Compile a self-test and run it in simavr; return the number that `call` returns.

    Raises InputError if the program does not fit the chip.
    """
    program = MAIN.replace("DECLARATIONS", declarations).replace("CALL", call)
    (folder / "avr.c").write_text(program)
    flags = ("-mmcu=atmega1284p", "-Os", *STRICT_FLAGS)
    run_tool(folder, "avr-gcc", *flags, "-o", "avr", "avr.c", *files, "-lm")
    output = run_tool(folder, *SIMAVR, "avr")
    count_match = re.search(r"differ: (-?\d+)", output)
    assert count_match is not None, output[-500:]
    return int(count_match[1])
