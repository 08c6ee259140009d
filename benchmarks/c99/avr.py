"""Self-tests of generated C on an emulated ATmega1284P."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.c99.compiled import STRICT_FLAGS, run_tool
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.writer import write_cascade

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
#: Number of rows with 30 features that fit into the flash, with the model and the answers.
ROWS_PER_PROGRAM: Final = 150


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


def count_differing_rows(folder: Path, cascade: Cascade, rows: NDArray[np.float32]) -> int:
    """Count rows (n, n_features) whose answer on the chip is not bitwise equal to that of Python.

    Each program has :data:`ROWS_PER_PROGRAM` of the rows in its flash, in addition to the rows that
    the writer makes from the model.
    """
    n_differing = 0
    for start in range(0, len(rows), ROWS_PER_PROGRAM):
        batch = replace(cascade, rows=rows[start : start + ROWS_PER_PROGRAM])
        write_cascade(batch, folder, name="m")
        n_differing += count_differing(
            folder, "m_selftest()", "int m_selftest(void);", "m.c", "m_selftest.c"
        )
    return n_differing
