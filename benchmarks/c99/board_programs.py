"""C programs that answer rows on a chip, with their sizes, ticks and answers.

:data:`IDLE_PROGRAM` only reads rows and writes a byte for each. Its sizes are subtracted from those
of the other programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.c99.compiled import section_sizes
from gatewise_export.c99.targets import TARGETS

IDLE_PROGRAM: Final = """\
#include <stdint.h>
#define N_VALUES 64
#define N_ANSWER_BYTES 1
static void answer_row(const float *row, unsigned char *answer) { *answer = row[0] != row[1]; }
#define more_of_row(row, answer) ((void)0)
"""
#: Code that answers a row of digits, by generator.
FOREST_PROGRAMS: Final = {
    "gatewise": """\
#include "m.h"
#define N_VALUES 64
#define N_ANSWER_BYTES 1
static float acquire(int feature, void *context) { return ((const float *)context)[feature]; }
static void answer_row(const float *row, unsigned char *answer)
{
    static m_instance instance;
    m_answer decision;
    m_decide(&instance, acquire, (void *)row, &decision);
    *answer = (unsigned char)decision.label;
}
#define more_of_row(row, answer) ((void)0)
""",
    "emlearn-loadable": """\
#include "emlearn-loadable.h"
#define N_VALUES 64
#define N_ANSWER_BYTES 1
static void answer_row(const float *row, unsigned char *answer)
{
    int16_t values[64];
    int i;
    for (i = 0; i < 64; i++)
        values[i] = (int16_t)(100 * row[i]);
    *answer = (unsigned char)forest_predict(values, 64);
}
#define more_of_row(row, answer) ((void)0)
""",
    "emlearn-inline": """\
#include "emlearn-inline.h"
#define N_VALUES 64
#define N_ANSWER_BYTES 1
static void answer_row(const float *row, unsigned char *answer)
{
    *answer = (unsigned char)forest_predict(row, 64);
}
#define more_of_row(row, answer) ((void)0)
""",
    "m2cgen": """\
#include "m2cgen.h"
#define N_VALUES 64
#define N_ANSWER_BYTES 1
static void answer_row(const float *row, unsigned char *answer)
{
    double values[64], shares[10];
    int i;
    unsigned char best = 0;
    for (i = 0; i < 64; i++)
        values[i] = row[i];
    score(values, shares);
    for (i = 1; i < 10; i++)
        if (shares[i] > shares[best])
            best = (unsigned char)i;
    *answer = best;
}
#define more_of_row(row, answer) ((void)0)
""",
}
#: Code that writes exit, label, acquired features and outputs of a cascade for a row.
CASCADE_PROGRAM: Final = """\
#include "m.h"
#define N_VALUES M_FEATURES
typedef struct {
    int32_t exit, label;
    uint8_t known[M_SLOTS + (4 - M_SLOTS % 4) % 4];
    float output[SUM_OUTPUTS];
} answer_type;
#define N_ANSWER_BYTES sizeof(answer_type)
static m_instance instance;
static answer_type whole;
static float acquire(int feature, void *context) { return ((const float *)context)[feature]; }
static void answer_row(const float *row, unsigned char *answer)
{
    m_answer decision;
    (void)answer;
    m_decide(&instance, acquire, (void *)row, &decision);
    whole.exit = decision.exit;
    whole.label = decision.label;
}
static void more_of_row(const float *row, unsigned char *answer)
{
    static const int n_outputs[] = {N_OUTPUTS};
    const unsigned char *from = (const unsigned char *)&whole;
    float *output = whole.output;
    unsigned i;
    int s, k;
    for (i = 0; i < M_SLOTS; i++)
        whole.known[i] = instance.known[i] != 0;
    m_begin(&instance);
    for (s = 0; s < M_STAGES; s++) {
        m_stage(&instance, s, acquire, (void *)row);
        for (k = 0; k < n_outputs[s]; k++)
            *output++ = instance.output[k];
    }
    for (i = 0; i < sizeof whole; i++)
        answer[i] = from[i];
}
"""


@dataclass(frozen=True)
class Run:
    """Sizes of a program in bytes, its ticks per row, and its answers as bytes."""

    flash: int
    ram: int
    stack: int
    ticks: NDArray[np.float64]
    answers: bytes


def run_program(
    target: str, folder: Path, answer: str, files: list[str], flags: Sequence[str] = ()
) -> Run:
    """Build the program with `answer` as answer.h for a machine, and run it on rows.bin."""
    machine = TARGETS[target]
    (folder / "answer.h").write_text(answer)
    (folder / "answers.bin").unlink(missing_ok=True)
    program = (Path(__file__).parent / "board_program.c").read_text()
    (folder / "board_program.c").write_text(program)
    elf_file = machine.build(folder, ["board_program.c", *files], *flags)
    text, data, bss = section_sizes(machine.compiler[0], elf_file)
    # board_program.c prints the ticks of each row, and then "stack" with the used bytes
    ticks_text, _, stack_text = machine.run(elf_file).partition("stack")
    return Run(
        flash=text + data,
        ram=data + bss,
        stack=int(stack_text.split()[0]),
        ticks=np.array(ticks_text.split(), np.float64) * machine.units_per_tick,
        answers=(folder / "answers.bin").read_bytes(),
    )
