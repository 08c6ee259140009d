"""Features of windows in generated C, compared with those of Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import isabstract
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import gatewise_signals as sig
from benchmarks.c99.compiled import (
    CORTEX_M4_EMULATOR,
    CORTEX_M4_LINK_FLAGS,
    STRICT_FLAGS,
    VECTOR_TABLE,
    compiler_command,
    max_stack_bytes,
)
from gatewise.decision import ALWAYS_STOP, split_outputs
from gatewise.errors import InputError
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_export import write_signals
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.signals.kinds import CALL_WRITERS
from gatewise_export.c99.signals.signal_writer import MAX_RELATIVE_ERROR
from gatewise_export.c99.writer import CSource, write_cascade
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock, SignalBlock
from gatewise_signals.signal_input import SignalInput
from tests.export.c99.signal_cases import CASES, Case, make_channels, make_random_windows
from tests.support import avr
from tests.support.needs import needs_compiler
from tests.support.shared_data import find_shared_file
from tests.support.signal_blocks import make_signal_blocks

pytestmark = needs_compiler

WARNINGS = (
    "-Wconversion", "-Wdouble-promotion", "-Wshadow", "-Wfloat-conversion", "-Wstrict-prototypes",
)  # fmt: skip

# For each window that it reads, the program writes the steps that the first feature needs and all
# features. It fails if computing the features in another order changes any bit.
PROGRAM = """\
#include <stdio.h>
#include <string.h>
${includes}
${functions}
int main(int argc, char **argv)
{
${calls}    return argc != 2;
}
"""
# A program for boards: prints the number of wrong windows and the largest error.
HAPT_SELFTEST = """\
#include <stdio.h>
int hapt_signals_selftest(float *farthest, int *other);
int main(void)
{
    float farthest;
    int other, wrong = hapt_signals_selftest(&farthest, &other);
    return printf("%d %g\\n", wrong, (double)farthest) < 0;
}
"""
# The function of one case. 7919 is a prime, so that its multiples visit the features in a mixed
# order.
CASE_PROGRAM = """\
int ${prefix}_signals_selftest(float *farthest, int *other);
static int ${prefix}(void)
{
    static ${prefix}_signals it;
    static ${element} window[${size}];
    static float values[${n_features}];
    float value, farthest;
    int i, n_other;
    while (fread(window, sizeof window, 1, stdin)) {
        ${prefix}_signals_start(&it, window);
        value = ${prefix}_signals_acquire(0, &it);
        for (i = 0; i < ${PREFIX}_SIGNALS_STEPS; i++)
            putchar(${prefix}_signals_computed(&it, i));
        for (i = 0; i < ${n_features}; i++) {
            values[i] = ${prefix}_signals_acquire(i, &it);
            fwrite(&values[i], sizeof value, 1, stdout);
        }
        ${prefix}_signals_start(&it, window);
        for (i = 0; i < 3 * ${n_features}; i++) {
            int number = i < ${n_features} ? ${n_features} - 1 - i : i * 7919 % ${n_features};
            value = ${prefix}_signals_acquire(number, &it);
            if (memcmp(&value, &values[number], sizeof value))
                return 3;
        }
    }
    return ${prefix}_signals_selftest(&farthest, &n_other);
}
"""


def write_cases(folder: Path, named_cases: dict[str, Case]) -> list[str]:
    """Write the C of all cases and a program that runs the case given by its argument."""
    includes, functions, calls = "", "", ""
    for name, case in named_cases.items():
        windows = case.windows
        write_signals(
            case.graph, windows.shape[1:], windows.dtype, folder, name=name, sample=windows[::20]
        )
        includes += f'#include "{name}_signals.h"\n'
        header = (folder / f"{name}_signals.h").read_text()
        element_type = re.search(r"const (\w+) \*window;", header)
        assert element_type is not None
        functions += Template(CASE_PROGRAM).substitute(
            prefix=name, PREFIX=name.upper(), element=element_type[1], size=windows[0].size,
            n_features=len(case.graph.feature_names),
        )  # fmt: skip
        calls += f'    if (argc == 2 && !strcmp(argv[1], "{name}"))\n        return {name}();\n'
    program = Template(PROGRAM).substitute(includes=includes, functions=functions, calls=calls)
    (folder / "run.c").write_text(program)
    return [path.name for path in folder.glob("*.c")]


def run_program(command: Sequence[str], folder: Path, stdin: bytes = b"") -> bytes:
    """Run a program in a folder; return its output."""
    process = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=False)
    assert process.returncode == 0, f"{process.returncode} {process.stderr.decode()[:2000]}"
    return process.stdout


def read_features(output: bytes, case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read a program's output: the features, and the steps computed for the first feature."""
    n_features = len(case.graph.feature_names)
    # The program writes a byte for each step and four for each feature of a window.
    n_steps = len(output) // len(case.windows) - 4 * n_features
    row_type = np.dtype([("steps", np.uint8, n_steps), ("features", np.float32, n_features)])
    rows = np.frombuffer(output, row_type)
    assert len(rows) == len(case.windows)
    return rows["features"], rows["steps"]


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory):
    """Folder with the program of all cases, compiled once."""
    folder = tmp_path_factory.mktemp("signals")
    files = write_cases(folder, CASES)
    run_program(
        [*(compiler_command() or ()), *STRICT_FLAGS, *WARNINGS, "-o", "run", *files, "-lm"], folder
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_features_equal_those_of_python(program_folder, name):
    case = CASES[name]
    # The program also runs the self-test.
    output = run_program(["./run", name], program_folder, case.windows.tobytes())
    features, is_computed = read_features(output, case)
    assert_features_agree(case, features)
    # Steps are numbered in the order of computation; later steps may overwrite the window.
    computed_steps = is_computed.any(axis=0).nonzero()[0]
    last_step = computed_steps[-1]
    assert len(computed_steps) <= last_step + 1 <= len(find_ancestors(case.graph.blocks[0]))
    assert is_computed[:, last_step].all()


def assert_features_agree(case: Case, features: NDArray[Any]) -> None:
    expected_features = case.graph.transform(case.windows)
    if case.is_exact:
        assert features.tobytes() == expected_features.tobytes()
        return
    # Differences relative to the largest value of each feature; the initial value avoids 0 / 0.
    differences = np.abs(features - expected_features) / np.abs(expected_features).max(
        axis=0, initial=1e-30
    )
    difference_by_name = dict(zip(case.graph.feature_names, differences.max(axis=0), strict=True))
    too_large = {
        name: difference
        for name, difference in difference_by_name.items()
        if not difference <= MAX_RELATIVE_ERROR  # also NaN
    }
    assert too_large == {}


def find_ancestors(step: sig.Step) -> set[sig.Step]:
    """Find a step and all steps that it needs."""
    return {step}.union(*map(find_ancestors, step.inputs))


def test_every_built_in_step_is_among_the_cases():
    built_in_classes = set()
    pending_classes = [sig.Step]
    while pending_classes:
        step_class = pending_classes.pop()
        pending_classes += step_class.__subclasses__()
        if step_class.__module__.startswith("gatewise_signals.") and not isabstract(step_class):
            built_in_classes.add(step_class)
    step_classes = {type(step) for case in CASES.values() for step in case.graph.steps}
    assert step_classes == set(CALL_WRITERS) == built_in_classes - {FunctionBlock, OnnxBlock}


def test_nan_and_infinite_samples_give_the_features_of_numpy(tmp_path):
    windows = make_random_windows(3, 3, 40, "float32")
    windows[0, 5, 1], windows[1, 7, 0] = np.nan, np.inf
    graph = sig.SignalGraph(make_signal_blocks()[:5])
    case = Case(graph, windows)
    files = write_cases(tmp_path, {"odd": case})
    run_program([*(compiler_command() or ()), *STRICT_FLAGS, "-o", "run", *files, "-lm"], tmp_path)
    features, _ = read_features(run_program(["./run", "odd"], tmp_path, windows.tobytes()), case)
    np.testing.assert_allclose(features, graph.transform(windows), rtol=1e-5)


@dataclass(frozen=True)
class Peak(SignalBlock):
    """Block without a translation to C."""

    kind: ClassVar[str] = "peak"
    channel_suffixes: ClassVar[tuple[str, ...]] = ("peak",)

    def values(self, channels):
        return channels.max(axis=-1, keepdims=True)


def test_blocks_and_types_without_a_translation_are_refused(tmp_path):
    channels = make_channels()
    graph = sig.SignalGraph([sig.Mean(channels), Peak(channels), sig.Statistics(channels)])
    with pytest.raises(ConversionError, match=r"^cannot write peak\(acc\) in C: "):
        write_signals(graph, (64, 3), "int16", tmp_path)
    with pytest.raises(ConversionError, match="the C cannot read windows of int64"):
        write_signals(sig.SignalGraph([sig.Mean(channels)]), (64, 3), "int64", tmp_path)
    with pytest.raises(InputError, match=r"\(64, 2\)"):
        write_signals(sig.SignalGraph([sig.Mean(channels)]), (64, 2), "int16", tmp_path)
    assert not list(tmp_path.iterdir())
    # Features of other blocks can be written alone, with only the C that they need.
    source = write_signals(graph, (64, 3), "int16", tmp_path, features=[1])
    source_text = (tmp_path / "model_signals.c").read_text()
    assert (source.n_steps, source.n_features) == (2, 3)
    assert "statistics" not in source_text
    assert "logf" not in source_text
    # Channels, features, two words of flags and counters, and one word of padding.
    assert source.struct_bytes == 4 + 4 * (64 * 3 + 3 + 2 + 1)


def make_linear_cascade() -> Cascade:
    """Cascade of two linear stages on noise; the second one reads spectra."""
    channels = make_channels()
    blocks = [
        sig.Mean(channels),
        sig.BandPowers(sig.Spectrum(channels, 25.0), (0.0, 4.0, 8.0, 12.5)),
        sig.Statistics(channels),
        Peak(channels),
    ]
    signal = SignalInput(sig.SignalGraph(blocks), (64, 3), "int16")
    windows = make_random_windows(8, 80, 64)
    rows = signal.features(windows)
    rng = np.random.default_rng(2)
    stages = []
    thresholds = []
    for features in (np.arange(3), np.arange(12)):
        stage_rows = rows[:, features]
        scale = 1 / np.maximum(stage_rows.std(axis=0), 1e-6)  # constant features have no spread
        weights = rng.normal(size=(len(features), 3)).astype(np.float32)
        model = LinearModel(
            stage_rows.mean(axis=0), scale.astype(np.float32), weights, np.zeros(3, "f4")
        )
        stages.append(Stage(model, features, "softmax"))
        _, scores = split_outputs(stages[-1].margins(rows), "margin")
        thresholds.append(float(np.sort(scores)[50]))  # the score of one of 80 rows
    return Cascade(
        title="noise", stages=tuple(stages), thresholds=tuple(thresholds), rows=rows,
        feature_names=signal.graph.feature_names, classes=(0, 1, 2), takes_missing=False,
        offloads=True, cloud_takes_missing=False, signal=signal, windows=windows,
    )  # fmt: skip


@pytest.mark.slow
def test_a_cascade_in_c_computes_its_features_and_decides_on_them(tmp_path):
    cascade = make_linear_cascade()
    source = write_cascade(cascade, tmp_path, name="noise")
    assert source.signals is not None
    # C computes the features of requests, except those of the block that has no C translation.
    assert source.signals.n_features == len(cascade.feature_names) - 3
    assert source.ram_bytes == source.instance_bytes + source.signals.struct_bytes
    output = run_program(["make", "-s", "test", "CFLAGS=-O0"], tmp_path).decode()
    assert "rows differ (80 of the sample, 256 generated from the model)" in output
    pattern = r"features of 0 of 80 .* by at most (\S+) of their scale;\n(\d+) more"
    match = re.search(pattern, output)
    assert match is not None
    assert float(match[1]) <= MAX_RELATIVE_ERROR
    assert int(match[2]) <= 1  # the row whose score is the threshold
    # An error of 0.02 % in a sum of spectra is detected.
    source_text = (tmp_path / "noise_signals.c").read_text()
    altered_text = source_text.replace("0.5f * (a[0] + b[0])", "0.5001f * (a[0] + b[0])")
    assert altered_text != source_text
    (tmp_path / "noise_signals.c").write_text(altered_text)
    process = subprocess.run(
        ["make", "-s", "test", "CFLAGS=-O0"], cwd=tmp_path, capture_output=True, check=False
    )
    assert process.returncode != 0
    assert re.search(rb"features of [1-9]\d* of 80", process.stdout)


@pytest.mark.slow
def test_only_blocks_that_a_stage_or_request_reads_are_written(tmp_path):
    cascade = make_linear_cascade()

    def write_changed_cascade(name: str, **changes: Any) -> CSource:
        changed_cascade = replace(cascade, **changes).without_unreachable_stages()
        return write_cascade(changed_cascade, tmp_path / name, name=name)

    whole_source = write_changed_cascade("whole")
    lean_source = write_changed_cascade("lean", is_lean=True)  # no features of requests
    stages_source = write_changed_cascade("stages", offloads=False)  # no requests
    # No second stage and no requests.
    always_source = write_changed_cascade("always", thresholds=(ALWAYS_STOP, None))
    sources = (whole_source, lean_source, stages_source, always_source)
    n_features = [source.signals.n_features for source in sources]
    # All blocks with a translation, both stages, both stages, the first stage.
    assert n_features == [30, 12, 12, 3]
    assert always_source.n_stages == 1
    assert always_source.signals.n_steps == 2
    assert always_source.ram_bytes < stages_source.ram_bytes <= whole_source.ram_bytes
    assert always_source.flash_bytes < stages_source.flash_bytes < whole_source.flash_bytes
    assert "0.5f * (a[0] + b[0])" not in (tmp_path / "always" / "always_signals.c").read_text()
    output = run_program(["make", "-s", "test", "CFLAGS=-O0"], tmp_path / "always").decode()
    assert "always: 0 of 336 rows differ" in output  # 80 of the sample and 256 generated


def test_the_self_test_generates_windows_without_a_sample(tmp_path):
    source = write_cascade(replace(make_linear_cascade(), windows=None), tmp_path, name="noise")
    assert source.signals is not None
    assert source.signals.sample_windows == 16
    output = run_program(["make", "-s", "test", "CFLAGS=-O0"], tmp_path).decode()
    assert "features of 0 of 16 windows differ" in output


@pytest.mark.slow
@avr.needs_avr_gcc
def test_avr_holds_the_tables_of_blocks_in_flash(program_folder):
    for name in ("uint16", "plain17", "frames", "shared"):
        assert avr.measure_sections(program_folder, f"{name}_signals.c")[1:] == [0, 0]


@pytest.mark.slow
@avr.needs_avr_gcc
@avr.needs_simavr
@pytest.mark.parametrize("name", ["uint16", "frames", "shared"])
def test_an_emulated_avr_computes_the_features(tmp_path, name):
    case = CASES[name]
    sample = case.windows[:3]
    write_signals(case.graph, sample.shape[1:], sample.dtype, tmp_path, name="m", sample=sample)
    declarations = (
        "int m_signals_selftest(float *farthest, int *n_other);\n"
        "static float farthest;\nstatic int n_other;"
    )
    call = "m_signals_selftest(&farthest, &n_other)"
    files = ("m_signals.c", "m_signals_selftest.c")
    assert not avr.count_differing(tmp_path, call, declarations, *files)


#: Compiler and flags for each processor.
TARGETS = {
    "x86-64": ("gcc", "-O2"),
    "aarch64": ("aarch64-linux-gnu-gcc", "-O2", "-static"),
    "arm-none-eabi": ("arm-none-eabi-gcc", "-Os", "-mcpu=cortex-m4", "-mthumb"),
}


def make_hapt_case() -> Case:
    """Make a case of the standard blocks on windows of human activity data."""
    with np.load(find_shared_file("hapt_windows.npz")) as arrays:
        windows = arrays["X"][::9]  # so that the test is short
    names = [f"{signal}_{axis}" for signal in ("acc", "gyro") for axis in "xyz"]
    blocks = sig.standard_blocks(rate_hz=50, channels=names, scale=1 / 720, samples=128)
    return Case(sig.SignalGraph(blocks), windows)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_features_of_hapt_on_other_processors(target, tmp_path):
    compiler, *flags = TARGETS[target]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    case = make_hapt_case()
    files = write_cases(tmp_path, {"hapt": case})
    if target == "arm-none-eabi":  # the stack stays below the declared size
        options = [*STRICT_FLAGS, *WARNINGS, *flags, "-fcallgraph-info=su", "-c", "hapt_signals.c"]
        run_program([compiler, *options], tmp_path)
        match = re.search(r"STACK_BYTES (\d+)", (tmp_path / "hapt_signals.h").read_text())
        assert match is not None
        stack_bytes = max_stack_bytes((tmp_path / "hapt_signals.ci").read_text())
        assert 64 < stack_bytes <= int(match[1])  # more than 64, else the calls were not counted
        run_hapt_on_cortex_m4([compiler, *STRICT_FLAGS, *flags], tmp_path)
        return
    run_program([compiler, *STRICT_FLAGS, *WARNINGS, *flags, "-o", "run", *files, "-lm"], tmp_path)
    runner = ["./run"] if target == "x86-64" else [find_emulator(), "./run"]
    output = run_program([*runner, "hapt"], tmp_path, case.windows.tobytes())
    features, _ = read_features(output, case)
    assert_features_agree(case, features)


def run_hapt_on_cortex_m4(command: list[str], folder: Path) -> None:
    """Run the self-test of the case hapt on an emulated board without an operating system."""
    if shutil.which(CORTEX_M4_EMULATOR[0]) is None:
        pytest.skip(f"{CORTEX_M4_EMULATOR[0]} is not installed (apt install qemu-system-arm)")
    (folder / "vectors.c").write_text(VECTOR_TABLE)
    (folder / "main.c").write_text(HAPT_SELFTEST)
    files = ["main.c", "hapt_signals.c", "hapt_signals_selftest.c", "vectors.c"]
    run_program([*command, "-o", "selftest", *files, *CORTEX_M4_LINK_FLAGS, "-lm"], folder)
    n_wrong, farthest = run_program([*CORTEX_M4_EMULATOR, "selftest"], folder).split()
    assert int(n_wrong) == 0
    assert 0 < float(farthest) <= MAX_RELATIVE_ERROR


def find_emulator() -> str:
    path = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if path is None:
        pytest.skip("qemu-aarch64-static is not installed (apt install qemu-user-static)")
    return path
