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

#: Warnings are errors. Without contraction to fused multiplications, floats round as in Python.
STRICT_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off")

#: Vector table of a Cortex-M with the initial stack pointer and the entry point.
#:
#: The stack starts at the end of the 4 MB of RAM that the board of :data:`CORTEX_M4_EMULATOR` has
#: at 0x20000000.
VECTOR_TABLE = """\
extern void _start(void);
__attribute__((section(".vectors"), used)) static void (*const vectors[2])(void) = {
    (void (*)(void))0x20400000, _start};
"""
#: The C library opens files of the host (rdimon), and the chip reads its vector table at address 0.
CORTEX_M4_LINK_FLAGS = ("--specs=rdimon.specs", "-Wl,--section-start=.vectors=0")
#: Command that runs a program with :data:`VECTOR_TABLE` on an emulated board.
CORTEX_M4_EMULATOR = (
    *("qemu-system-arm", "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native", "-kernel"),
)

#: Number of integers per answer: outcome, exit, label, stage and refused, in the order of Answers.
N_FIELDS = 5

#: C functions that answer rows of floats; p and P are the model's name in lower and upper case.
#:
#: A stage's outputs are read before the next stage runs, because an instance holds those of one
#: stage.
BATCH_TEMPLATE = """\
#include "${header}"
static float ${p}_row_value(int feature, void *context)
{
    return ((const float *)context)[feature];
}
void ${p}_answer_row(const float *row, int32_t *fields);
void ${p}_answer_rows(const float *rows, int32_t n, int32_t *fields,
    uint8_t *acquired, float *outputs);
static void ${p}_fill_answer(${p}_instance *instance, const float *row, int32_t *fields)
{
    ${p}_answer answer;
    ${p}_decide(instance, ${p}_row_value, (void *)row, &answer);
    fields[0] = answer.outcome;
    fields[1] = answer.exit;
    fields[2] = answer.label;
    fields[3] = answer.stage;
    fields[4] = answer.refused;
}
/* Answers one row like a device, for measurements through a foreign function interface. */
void ${p}_answer_row(const float *row, int32_t *fields)
{
    ${p}_instance instance;
    ${p}_fill_answer(&instance, row, fields);
}
void ${p}_answer_rows(const float *rows, int32_t n, int32_t *fields,
    uint8_t *acquired, float *outputs)
{
    static const int n_outputs[] = {${n_outputs}};
    int32_t row, i, stage;
    for (row = 0; row < n; row++, rows += ${P}_FEATURES, fields += ${n_fields}) {
        ${p}_instance instance;
        ${p}_fill_answer(&instance, rows, fields);
        for (i = 0; i < ${P}_FEATURES; i++)
            acquired[i] = (uint8_t)${p}_acquired(&instance, i);
        acquired += ${P}_FEATURES;
        /* A decision ends at the stage that stops; run all stages again for their outputs. */
        ${p}_begin(&instance);
        for (stage = 0; stage < ${P}_STAGES; stage++) {
            int refused = ${p}_stage(&instance, stage, ${p}_row_value, (void *)rows) < 0;
            for (i = 0; i < n_outputs[stage]; i++)
                *outputs++ = refused ? 0.0f : instance.output[i];
        }
    }
}
"""

#: Declarations for cffi of the functions in :data:`BATCH_TEMPLATE` and of the self-test.
DECLARATION_TEMPLATE = """
void ${p}_answer_row(const float *row, int32_t *fields);
void ${p}_answer_rows(const float *rows, int32_t n, int32_t *fields,
    uint8_t *acquired, float *outputs);
int ${p}_selftest(void);
"""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of C to n rows; the first five fields have shape (n,).

    `refused` is the number of the feature whose value was refused, or negative. `acquired`, shape
    (n, n_features), marks the acquired features. `outputs` has an array of shape (n, n_outputs) for
    each stage; outputs are 0 if a value was refused.
    """

    outcomes: NDArray[np.int32]
    exits: NDArray[np.int32]
    labels: NDArray[np.int32]
    stages: NDArray[np.int32]
    refused: NDArray[np.int32]
    acquired: NDArray[np.bool_]
    outputs: tuple[NDArray[np.float32], ...]


class CompiledModel:
    """Compiled and loaded model; made by :func:`compile_models`.

    ``answer_row(row, answer)`` is the bare C function, with pointers to floats and to five int32.
    """

    def __init__(self, source: CSource, n_outputs: Sequence[int], ffi: Any, library: Any) -> None:
        self.source = source
        self.ffi = ffi
        # a reference, because cffi unloads the library with the last one
        self._library = library
        self._n_outputs = tuple(n_outputs)
        self.answer_row = getattr(library, f"{source.name}_answer_row")
        self._answer_rows = getattr(library, f"{source.name}_answer_rows")
        self._selftest = getattr(library, f"{source.name}_selftest")

    def count_selftest_failures(self) -> int:
        """Count the sample rows that C answers differently from training."""
        return int(self._selftest())

    def __call__(self, rows: NDArray[np.float32]) -> Answers:
        """Answer rows, shape (n, n_features)."""
        rows = np.ascontiguousarray(rows, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.source.n_features:
            raise InputError(
                f"expected rows of {self.source.n_features} columns, got shape {rows.shape}"
            )
        answer_fields = np.zeros((len(rows), N_FIELDS), np.int32)
        acquired = np.zeros(rows.shape, np.uint8)
        outputs = np.zeros((len(rows), sum(self._n_outputs)), np.float32)
        # shapes, C order and types of the arrays must match what BATCH_TEMPLATE reads and writes
        pointer = self.ffi.from_buffer
        self._answer_rows(
            pointer("float[]", rows),
            len(rows),
            pointer("int32_t[]", answer_fields),
            pointer("uint8_t[]", acquired),
            pointer("float[]", outputs),
        )
        stage_outputs = np.split(outputs, np.cumsum(self._n_outputs)[:-1], axis=1)
        outcomes, exits, labels, stages, refused = answer_fields.T
        return Answers(
            outcomes=outcomes,
            exits=exits,
            labels=labels,
            stages=stages,
            refused=refused,
            acquired=acquired.view(np.bool_),  # C writes only 0 and 1
            outputs=tuple(stage_outputs),
        )


def compiler_command() -> list[str] | None:
    """Find the C compiler: the command in CC if set, otherwise cc, gcc or clang."""
    cc_command = shlex.split(os.environ.get("CC", ""))
    for command in [cc_command] if cc_command else [["cc"], ["gcc"], ["clang"]]:
        program = shutil.which(command[0])
        if program is not None:
            return [program, *command[1:]]
    return None


def run_tool(folder: Path, *command: str) -> str:
    """Run a command in a folder; return its output and standard error, or raise InputError.

    The message has at most 2,000 characters, because a compiler may report thousands of errors.
    """
    completed_process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if completed_process.returncode:
        raise InputError(f"{' '.join(command)}: {completed_process.stderr.strip()[:2000]}")
    return completed_process.stdout + completed_process.stderr


def section_sizes(compiler: str, file: Path) -> tuple[int, int, int]:
    """Read the bytes of text, data and bss of a compiled file from the compiler's ``size``."""
    size_program = compiler.replace("gcc", "size") if "-gcc" in compiler else "size"
    # the first line is the header of the table
    text, data, bss = run_tool(file.parent, size_program, file.name).splitlines()[1].split()[:3]
    return int(text), int(data), int(bss)


def max_stack_bytes(call_graph: str) -> int:
    """Sum the stack of the deepest call chain in the output of ``gcc -fcallgraph-info=su``.

    The generated code must not be recursive. Functions of other files, such as those of the C
    library, count 0 because the graph does not state their stack.
    """
    frame_bytes = dict(re.findall(r'title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes', call_graph))
    calls = set(re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', call_graph))

    def count_chain_bytes(function: str) -> int:
        callee_bytes = (count_chain_bytes(callee) for caller, callee in calls if caller == function)
        return int(frame_bytes.get(function, 0)) + max(callee_bytes, default=0)

    return max(map(count_chain_bytes, frame_bytes))


def compile_models(
    sources: Sequence[tuple[CSource, Sequence[int]]], *, flags: Sequence[str] = ("-O2",)
) -> list[CompiledModel]:
    """Compile models into one library and load it.

    Each model comes with the numbers of outputs of its stages. The models need distinct names,
    because C has one name space, and distinct folders. Raises InputError for a compiler warning or
    a missing compiler.
    """
    import cffi

    command = compiler_command()
    if command is None:
        raise InputError("no C compiler found (cc, gcc, clang or $CC)")
    library_path = Path(sources[0][0].folder, "rows.so").resolve()
    batch_file = library_path.with_suffix(".c")
    c_files = [batch_file]
    c_code = ""
    declarations = ""
    for source, n_outputs in sources:
        placeholders = {"p": source.name, "P": source.name.upper()}
        c_code += Template(BATCH_TEMPLATE).substitute(
            placeholders,
            n_outputs=", ".join(map(str, n_outputs)),
            n_fields=N_FIELDS,
            header=source.folder.resolve() / f"{source.name}.h",
        )
        c_files += [
            source.folder.resolve() / f"{source.name}{suffix}.c" for suffix in ("", "_selftest")
        ]
        declarations += Template(DECLARATION_TEMPLATE).substitute(placeholders)
    batch_file.write_text(c_code)
    output_flags = ("-shared", "-fPIC", "-o", str(library_path))
    run_tool(
        library_path.parent, *command, *STRICT_FLAGS, *flags, *output_flags, *map(str, c_files)
    )
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    library = ffi.dlopen(str(library_path))
    return [CompiledModel(source, n_outputs, ffi, library) for source, n_outputs in sources]
