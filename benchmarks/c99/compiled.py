"""Compilation of generated C into a library, to compare its answers with Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.c99.writer import CSource

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off")

VECTORS = """\
extern void _start(void);
__attribute__((section(".vectors"), used)) static void (*const vectors[2])(void) = {
    (void (*)(void))0x20400000, _start};
"""
"""Vector table of a Cortex-M with the initial stack pointer and the entry point."""
CORTEX_M4_LINK = ("--specs=rdimon.specs", "-Wl,--section-start=.vectors=0")
CORTEX_M4_RUN = (
    "qemu-system-arm",
    "-M",
    "mps2-an386",
    "-nographic",
    "-monitor",
    "none",
    "-serial",
    "none",
    "-semihosting-config",
    "enable=on,target=native",
    "-kernel",
)
"""Command that runs a program with :data:`VECTORS` on an emulated board, with files of the host."""

BATCH = """\
#include "${header}"
static float ${p}_row_value(int feature, void *context)
{
    return ((const float *)context)[feature];
}
void ${p}_one(const float *row, int32_t *said);
void ${p}_rows(const float *rows, int32_t n, int32_t *said, uint8_t *bought, float *outputs);
static void ${p}_answered(${p}_instance *instance, const float *row, int32_t *said)
{
    ${p}_answer answer;
    ${p}_decide(instance, ${p}_row_value, (void *)row, &answer);
    said[0] = answer.outcome;
    said[1] = answer.exit;
    said[2] = answer.label;
    said[3] = answer.stage;
    said[4] = answer.refused;
}
/* Answers one row like a device, for measurements through a foreign function interface. */
void ${p}_one(const float *row, int32_t *said)
{
    ${p}_instance instance;
    ${p}_answered(&instance, row, said);
}
void ${p}_rows(const float *rows, int32_t n, int32_t *said, uint8_t *bought, float *outputs)
{
    static const int n_outputs[] = {${n_outputs}};
    int32_t row, i, s;
    for (row = 0; row < n; row++, rows += ${P}_FEATURES, said += 5) {
        ${p}_instance instance;
        ${p}_answered(&instance, rows, said);
        for (i = 0; i < ${P}_SLOTS; i++)
            bought[i] = instance.known[i] != 0;
        bought += ${P}_SLOTS;
        ${p}_begin(&instance);
        for (s = 0; s < ${P}_STAGES; s++) {
            int refused = ${p}_stage(&instance, s, ${p}_row_value, (void *)rows) < 0;
            for (i = 0; i < n_outputs[s]; i++)
                *outputs++ = refused ? 0.0f : instance.output[i];
        }
    }
}
"""

DECLARATIONS = """
void ${p}_one(const float *row, int32_t *said);
void ${p}_rows(const float *rows, int32_t n, int32_t *said, uint8_t *bought, float *outputs);
int ${p}_selftest(void);
"""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of C to n rows, with fields of shape (n,).

    `bought` marks the acquired features. `outputs` has the outputs of each stage for all rows,
    which are 0 after a refused value.
    """

    outcomes: NDArray[np.int32]
    exits: NDArray[np.int32]
    labels: NDArray[np.int32]
    stages: NDArray[np.int32]
    refused: NDArray[np.int32]
    bought: NDArray[np.bool_]
    outputs: tuple[NDArray[np.float32], ...]


class Compiled:
    """Compiled and loaded model; made by :func:`build`.

    ``one(row, answer)`` is the bare C function, with pointers to floats and to five int32.
    """

    def __init__(self, source: CSource, outputs: Sequence[int], ffi: Any, lib: Any) -> None:
        self.source = source
        self.ffi = ffi
        self._lib = lib  # keep a reference, because cffi unloads the library with the last one
        self._outputs = tuple(outputs)
        self.one = getattr(lib, f"{source.name}_one")
        self._rows = getattr(lib, f"{source.name}_rows")
        self._selftest = getattr(lib, f"{source.name}_selftest")

    def selftest(self) -> int:
        """Number of sample rows that C answers differently from training."""
        return int(self._selftest())

    def __call__(self, x: NDArray[np.float32]) -> Answers:
        """Answer rows, shape (n, n_features)."""
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self.source.n_features:
            raise InputError(
                f"expected rows of {self.source.n_features} columns, got shape {x.shape}"
            )
        said = np.zeros((len(x), 5), np.int32)
        bought = np.zeros((len(x), self.source.n_slots), np.uint8)
        outputs = np.zeros((len(x), sum(self._outputs)), np.float32)
        cast = self.ffi.from_buffer
        self._rows(
            cast("float[]", x),
            len(x),
            cast("int32_t[]", said),
            cast("uint8_t[]", bought),
            cast("float[]", outputs),
        )
        stage_outputs = np.split(outputs, np.cumsum(self._outputs)[:-1], axis=1)
        outcomes, exits, answers, stages, refused = said.T
        return Answers(
            outcomes=outcomes,
            exits=exits,
            labels=answers,
            stages=stages,
            refused=refused,
            bought=bought.view(np.bool_),
            outputs=tuple(stage_outputs),
        )


def compiler() -> list[str] | None:
    """Command of the C compiler: the variable CC if set, otherwise cc, gcc or clang."""
    cc_command = shlex.split(os.environ.get("CC", ""))
    for command in [cc_command] if cc_command else [["cc"], ["gcc"], ["clang"]]:
        program = shutil.which(command[0])
        if program is not None:
            return [program, *command[1:]]
    return None


def deepest_calls(graph: str) -> int:
    """Stack bytes of the deepest call chain in the output of ``gcc -fcallgraph-info=su``."""
    frames = dict(re.findall(r'title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes', graph))
    edges = set(re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', graph))

    def depth(name: str) -> int:
        depths = (depth(called) for caller, called in edges if caller == name)
        return int(frames.get(name, 0)) + max(depths, default=0)

    return max(map(depth, frames))


def build(
    sources: Sequence[tuple[CSource, Sequence[int]]], *, flags: Sequence[str] = ("-O2",)
) -> list[Compiled]:
    """Compile models into one library and load it.

    Each model comes with the numbers of outputs of its stages. The models need distinct names and
    folders. Raises InputError for a compiler warning or a missing compiler.
    """
    import cffi

    command = compiler()
    if command is None:
        raise InputError("no C compiler found (cc, gcc, clang or $CC)")
    library = Path(sources[0][0].folder, "rows.so").resolve()
    batch = library.with_suffix(".c")
    files = [batch]
    batch_code = ""
    declarations = ""
    for source, outputs in sources:
        names = {"p": source.name, "P": source.name.upper()}
        sizes = ", ".join(map(str, outputs))
        header = str(source.folder.resolve() / f"{source.name}.h")
        batch_code += Template(BATCH).substitute(names, n_outputs=sizes, header=header)
        files += [source.folder / f"{source.name}{suffix}.c" for suffix in ("", "_selftest")]
        declarations += Template(DECLARATIONS).substitute(names)
    batch.write_text(batch_code)
    process = subprocess.run(
        [*command, *STRICT, *flags, "-shared", "-fPIC", "-o", str(library), *map(str, files)],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise InputError(
            f"{command[0]} cannot compile {batch.name}: {process.stderr.strip()[:500]}"
        )
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    lib = ffi.dlopen(str(library))
    return [Compiled(source, outputs, ffi, lib) for source, outputs in sources]
