"""Programs for AVR: compiled by avr-gcc, run by simavr."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.c99.compiled import STRICT

needs_avr_gcc = pytest.mark.skipif(
    shutil.which("avr-gcc") is None, reason="avr-gcc is not installed"
)
needs_simavr = pytest.mark.skipif(shutil.which("simavr") is None, reason="simavr is not installed")

MAIN = """\
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>

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
    UCSR0B = 1 << TXEN0;
    print(CALL ? "differ: some\\n" : "differ: 0\\n");
    cli();
    sleep_enable();
    sleep_cpu(); /* ends the emulation */
    return 0;
}
"""


def run_tool(folder: Path, *command: str) -> str:
    """Run a command in a folder; its output and what it wrote to standard error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout + done.stderr


def sizes(folder: Path, file: str, *flags: str) -> list[int]:
    """Compile a file; bytes of code with tables, of data and of zeros in RAM."""
    flags = ("-mmcu=atmega1284p", "-Os", *STRICT, *flags)
    run_tool(folder, "avr-gcc", *flags, "-o", "avr.o", "-c", file)
    return [int(n) for n in run_tool(folder, "avr-size", "avr.o").split("\n")[1].split()[:3]]


def differing(folder: Path, call: str, declarations: str, *files: str) -> bool:
    """Run a self-test on an emulated ATmega1284P; whether `call` counts any difference."""
    main = MAIN.replace("DECLARATIONS", declarations).replace("CALL", call)
    (folder / "avr.c").write_text(main)
    flags = ("-mmcu=atmega1284p", "-Os", *STRICT)
    run_tool(folder, "avr-gcc", *flags, "-o", "avr", "avr.c", *files, "-lm")
    printed = run_tool(folder, "simavr", "-m", "atmega1284p", "-f", "16000000", "avr")
    assert "differ: " in printed
    return "differ: 0" not in printed
