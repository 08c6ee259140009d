"""What comes with a model: a self-test with real rows, a program that reads rows, a Makefile."""

from __future__ import annotations

from string import Template
from typing import Any

import numpy as np

from gatewise._version import __version__
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Layout
from gatewise_export.c99.source import MARK
from gatewise_export.c99.tables import Tables, smallest

__all__ = ["main_program", "makefile", "selftest"]

SELFTEST = """\
/* ${mark} ${version}: real rows, and what ${p}.c must answer to them, to the bit. */
#include "${p}.h"

#include <math.h>

int ${p}_selftest(void);

typedef union {
    float value;
    uint32_t bits;
} word;

${tables}
typedef struct {
    const float *row;
    int calls;
} source_type;

static float acquire(int feature, void *context)
{
    source_type *source = (source_type *)context;
    int i;
    source->calls++;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (column[i] == feature)
            return source->row[i];
    return NAN;
}

static int same(float got, uint32_t expected)
{
    word a, b;
    a.value = got;
    b.bits = expected;
    return a.bits == b.bits || (a.value != a.value && b.value != b.value);
}

static int row_agrees(int row)
{
    static ${p}_instance instance; /* not on the stack */
    ${p}_answer answer;
    source_type source;
    const uint32_t *expected = outputs + row * ${all_outputs};
    int i, s, bought = 0;
    source.row = rows + row * ${width};
    source.calls = 0;
    ${p}_decide(&instance, acquire, &source, &answer);
    if (answer.exit != exits[row] || answer.label != labels[row])
        return 0;
    for (i = 0; i < ${P}_SLOTS; i++) {
        int known = ${p}_value(&instance, column[i]) != 0;
        bought += known;
        if (known != ((acquired[row * ${acquired_bytes} + i / 8] >> i % 8) & 1))
            return 0;
    }
    if (source.calls != bought)
        return 0;
    ${p}_begin(&instance);
    for (s = 0; s < ${P}_STAGES; s++) {
        if (${p}_stage(&instance, s, acquire, &source) < 0)
            return 0;
        for (i = 0; i < n_outputs[s]; i++)
            if (!same(instance.output[i], *expected++))
                return 0;
    }
    return 1;
}

/* How many of the ${n_rows} rows are answered otherwise than in training: 0. */
int ${p}_selftest(void)
{
    int row, wrong = 0;
    for (row = 0; row < ${n_rows}; row++)
        wrong += !row_agrees(row);
    return wrong;
}
"""

MAIN = """\
/* ${mark} ${version}: the self-test; with --rows it answers rows from standard input.

   A row is ${P}_FEATURES numbers with blanks or commas between them, "nan" where one is missing.
   For each it prints: outcome, exit, label, then a 1 for each feature that was bought, else a 0,
   and the outputs of the last stage that finished. */
#include "${p}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ${p}_selftest(void);

static float acquire(int feature, void *context)
{
    return ((const float *)context)[feature];
}

static int read_row(float *row)
{
    char word[64];
    int i;
    for (i = 0; i < ${P}_FEATURES; i++) {
        if (scanf("%63[^, \\t\\r\\n]%*[, \\t\\r\\n]", word) != 1)
            return 0;
        row[i] = strtof(word, NULL);
    }
    return 1;
}

static void print_answer(const ${p}_instance *instance, const ${p}_answer *answer)
{
    static const char *const outcomes[] = {"stopped", "offload", "fallback", "error"};
    static const int n_outputs[] = {${n_outputs}};
    int i;
    printf("%s,%d,%d,", outcomes[answer->outcome], answer->exit, answer->label);
    for (i = 0; i < ${P}_FEATURES; i++)
        putchar(${p}_value(instance, i) ? '1' : '0');
    for (i = 0; answer->stage >= 0 && i < n_outputs[answer->stage]; i++)
        printf(",%.9g", (double)instance->output[i]);
    putchar('\\n');
}

int main(int argc, char **argv)
{
    static float row[${P}_FEATURES];
    static ${p}_instance instance;
    ${p}_answer answer;
    int wrong;
    if (argc > 1 && strcmp(argv[1], "--rows") == 0) {
        while (read_row(row)) {
            ${p}_decide(&instance, acquire, row, &answer);
            print_answer(&instance, &answer);
        }
        return ferror(stdin) || ferror(stdout);
    }
    wrong = ${p}_selftest();
    printf("${p}: %d of ${n_rows} rows differ; tables %d B, instance %d B, stack at most %d B\\n",
           wrong, ${P}_TABLE_BYTES, ${P}_INSTANCE_BYTES, ${P}_STACK_BYTES);
    return wrong != 0;
}
"""

MAKEFILE = """\
# ${mark} ${version}. `make test` runs the self-test, `make size` tells what a model takes.
#
# -ffp-contract=off: a fused multiply-add rounds once where training rounded twice, and then
# decisions differ in the last bit. Never -ffast-math or -Ofast; on i386 add -msse2 -mfpmath=sse.
# For a microcontroller compile ${p}.c alone (and ${p}_selftest.c, if you have the room), say with
#   make ${p}.o CC=arm-none-eabi-gcc CFLAGS="-Os -mcpu=cortex-m4 -mthumb"
CC ?= cc
CFLAGS ?= -O2
STRICT := -std=c99 -Wall -Wextra -Werror -pedantic -ffp-contract=off

all: ${p}_example

${p}_example: main.o ${p}.o ${p}_selftest.o
	$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ -lm

%.o: %.c ${p}.h
	$$(CC) $$(STRICT) $$(CFLAGS) -c -o $$@ $$<

test: ${p}_example
	./${p}_example

size: ${p}.o
	size $$<

clean:
	rm -f ${p}_example main.o ${p}.o ${p}_selftest.o

.PHONY: all test size clean
"""


def selftest(cascade: Cascade, layout: Layout, prefix: str) -> str:
    """C of a function that answers the cascade's rows and counts those that differ."""
    x = cascade.rows
    expected = cascade.expected(x)
    n = len(x)
    tables = Tables()
    tables.add("column", layout.columns, "uint32_t", "Features, in the order of the rows' numbers.")
    tables.add("rows", x[:, layout.columns], "float")
    tables.add("exits", expected.exits, "uint16_t", "The stage that stops, or the number of them.")
    tables.add("labels", expected.labels, smallest(len(cascade.classes)))
    bits = np.packbits(expected.bought[:, layout.columns], axis=1, bitorder="little")
    tables.add("acquired", bits, "uint8_t", "Features that were bought, a bit each.")
    flat = np.concatenate([np.zeros((n, 0), np.float32), *expected.outputs], axis=1)
    tables.add("outputs", np.ascontiguousarray(flat).view(np.uint32), "uint32_t", "As bits.")
    sizes = np.array([out.shape[1] for out in expected.outputs])
    tables.add("n_outputs", sizes, "uint16_t", "Of each stage.")
    text = str(tables).replace("const uint32_t column[", "const int32_t column[")
    return Template(SELFTEST).substitute(
        _names(prefix),
        tables=text,
        n_rows=str(n),
        width=str(max(layout.n_slots, 1)) if not n else str(layout.n_slots),
        all_outputs=str(flat.shape[1]),
        acquired_bytes=str(bits.shape[1]),
    )


def main_program(cascade: Cascade, prefix: str) -> str:
    """C of a program that runs the self-test, or answers rows from standard input."""
    sizes = cascade.outputs
    return Template(MAIN).substitute(
        _names(prefix), n_rows=str(len(cascade.rows)), n_outputs=", ".join(map(str, sizes))
    )


def makefile(prefix: str) -> str:
    """A Makefile for make and any C99 compiler."""
    return Template(MAKEFILE).substitute(_names(prefix))


def _names(prefix: str) -> dict[str, Any]:
    return {"mark": MARK, "version": __version__, "p": prefix, "P": prefix.upper()}
