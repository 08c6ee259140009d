"""Compiler of written C on this machine, to compare it with Python row by row."""

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
"""What a Cortex-M starts with: its stack and its first function."""
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
"""Runs a program, linked with :data:`VECTORS`, on an emulated board; files and output are ours."""

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
/* One row, as a device would; what a foreign function interface costs is on top. */
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
    """Answers of C to n rows: the fields of an answer, shape (n,), and what was acquired.

    `outputs` are those of each stage for all rows; zeros where a value was refused.
    """

    outcomes: NDArray[np.int32]
    exits: NDArray[np.int32]
    labels: NDArray[np.int32]
    stages: NDArray[np.int32]
    refused: NDArray[np.int32]
    bought: NDArray[np.bool_]
    outputs: tuple[NDArray[np.float32], ...]


class Compiled:
    """A model that was compiled and loaded; made by :func:`build`.

    The bare C call is ``one(row, said)``, with pointers to floats and to five int32.
    """

    def __init__(self, source: CSource, outputs: Sequence[int], ffi: Any, lib: Any) -> None:
        self.source = source
        self.ffi = ffi
        self._lib = lib  # unloaded with its last reference, whatever its functions say
        self._outputs = tuple(outputs)
        self.one = getattr(lib, f"{source.name}_one")
        self._rows = getattr(lib, f"{source.name}_rows")
        self._selftest = getattr(lib, f"{source.name}_selftest")

    def selftest(self) -> int:
        """Rows of the sample that C answers differently from training."""
        return int(self._selftest())

    def __call__(self, x: NDArray[np.float32]) -> Answers:
        """Answer rows, shape (n, n_features)."""
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self.source.n_features:
            raise InputError(f"rows of {self.source.n_features} columns, not shape {x.shape}")
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
    """The C compiler's command: what the environment's CC says, else cc, gcc or clang."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        program = shutil.which(command[0])
        if program is not None:
            return [program, *command[1:]]
    return None


def deepest_calls(graph: str) -> int:
    """Bytes of stack of the longest chain of calls, of gcc's ``-fcallgraph-info=su``."""
    frames = dict(re.findall(r'title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes', graph))
    edges = set(re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', graph))

    def depth(name: str) -> int:
        depths = (depth(called) for caller, called in edges if caller == name)
        return int(frames.get(name, 0)) + max(depths, default=0)

    return max(map(depth, frames))


def build(
    sources: Sequence[tuple[CSource, Sequence[int]]], *, flags: Sequence[str] = ("-O2",)
) -> list[Compiled]:
    """Compile models, each with the outputs of its stages, into one library, and load it.

    They lie in folders of their own, and their names differ. Warnings are errors: an InputError,
    as is a compiler that is missing.
    """
    import cffi

    command = compiler()
    if command is None:
        raise InputError("no C compiler here (cc, gcc, clang or $CC)")
    library = Path(sources[0][0].folder, "rows.so").resolve()
    batch = library.with_suffix(".c")
    files = [batch]
    batch_code, declarations = "", ""
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
        raise InputError(f"{command[0]} does not compile it: {process.stderr.strip()[:500]}")
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    lib = ffi.dlopen(str(library))
    return [Compiled(source, outputs, ffi, lib) for source, outputs in sources]
