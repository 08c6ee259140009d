"""Test the generated C files.

The tests are about identifiers, models of minimal size, compilers that are refused, missing values,
and builds without the flags of the Makefile.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from benchmarks.c99.compiled import STRICT_FLAGS, compile_models, compiler_command
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_export import to_c
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.writer import write_cascade
from tests.support import small_bundle
from tests.support.needs import needs_compiler
from tests.support.trees import make_trees

pytestmark = needs_compiler

#: Names that are not C identifiers; two become the same identifier, and one holds a trigraph.
NAMES = ("temp, °C", "a-b", 'a"b', "??/\\")
CLASSES = ("ok", "not ok", "not-ok")
ROW = np.array([[1.5, -2, 0.25, 8]], np.float32)


def make_linear_cascade() -> Cascade:
    """Make a cascade of one linear stage, which reads all columns and answers all rows."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 4
    linear_model = LinearModel(
        mean=np.zeros(4, "f4"), scale=np.ones(4, "f4"), weights=weights, bias=np.zeros(3, "f4")
    )
    return Cascade(
        title="plant 1", stages=(Stage(linear_model, np.arange(4), "softmax"),), thresholds=(None,),
        feature_names=NAMES, classes=CLASSES, takes_missing=False, offloads=False,
        cloud_takes_missing=False, rows=ROW,
    )  # fmt: skip


def compile_source(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*(compiler_command() or ()), *STRICT_FLAGS, "-c", *flags, "-o", "out.o", "m.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


# -- names -----------------------------------------------------------------------------------


def test_features_and_classes_have_enums_and_names(tmp_path):
    write_cascade(make_linear_cascade(), tmp_path, name="m")
    assert re.findall(r"    (M_\w+ = \d)", (tmp_path / "m.h").read_text()) == [
        "M_FEATURE_TEMP___C = 0", "M_FEATURE_A_B = 1", "M_FEATURE_A_B_2 = 2", "M_FEATURE_____ = 3",
        "M_CLASS_OK = 0", "M_CLASS_NOT_OK = 1", "M_CLASS_NOT_OK_2 = 2",
    ]  # fmt: skip
    (tmp_path / "names.c").write_text(
        '#include "m.h"\n#include <stdio.h>\n'
        "int main(void) {\n"
        "    int i;\n"
        "    for (i = 0; i < M_FEATURES; i++) puts(m_feature_names[i]);\n"
        "    puts(m_class_names[M_CLASS_NOT_OK_2]);\n"
        "    return 0;\n}\n"
    )
    command = [*(compiler_command() or ()), *STRICT_FLAGS, "-o", "names", "names.c", "m_names.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    output = subprocess.run([tmp_path / "names"], capture_output=True, check=True).stdout
    assert output.decode().splitlines() == [*NAMES, "not-ok"]


def test_default_name_is_the_bundles_without_its_version(tmp_path):
    bundle = small_bundle.write_bundle(tmp_path / "bundle", name="plant 2", version="1 beta")
    assert to_c(bundle, tmp_path / "c").name == "plant_2"


def test_names_of_static_functions_differ_from_public_ones():
    """A model with the name ``leaf`` has a public function ``leaf_value``."""
    templates = (resources.files("gatewise_export.c99") / "templates").iterdir()
    template_text = "\n".join(file.read_text() for file in templates)
    public_endings = tuple(f"_{name}" for name in re.findall(r"\$\{p\}_(\w+)", template_text))
    # each template begins a function at the start of a line
    static_names = re.findall(r"^static [\w${} *]*?\b([a-z]\w*)\(", template_text, re.MULTILINE)
    # names from three templates show that the expression matches the functions
    assert {"acquire_slots", "leaf_number", "fft"} < set(static_names)
    assert not [name for name in static_names if name.endswith(public_endings)]


# -- minimal models ----------------------------------------------------------------------------


def test_the_self_test_passes_if_the_models_of_stages_are_left_out(tmp_path):
    """A lean source has no models that offload all rows; the expected label is then -1."""
    cascade = replace(make_linear_cascade(), offloads=True, is_lean=True)
    source = write_cascade(cascade, tmp_path, name="m")
    (compiled_model,) = compile_models([(source, cascade.stage_n_outputs)], flags=("-O0",))
    assert compiled_model.count_selftest_failures() == 0
    assert compiled_model(ROW).labels.tolist() == [-1]


def test_a_left_out_model_has_no_label(tmp_path):
    cascade = make_linear_cascade()
    stages = (*cascade.stages, *cascade.stages)
    lean_cascade = replace(cascade, stages=stages, thresholds=(None, None), is_lean=True)
    write_cascade(lean_cascade, tmp_path, name="m")
    command = [*(compiler_command() or ()), *STRICT_FLAGS, "-shared", "-fPIC", "m.c", "-o", "m.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "m.so"))
    instance = ctypes.create_string_buffer(1000)
    assert [library.m_label(instance, stage) for stage in (0, 1)] == [-1, 0]


@pytest.mark.parametrize("coded", [None, 8])
def test_trees_of_single_leaves_have_no_codes(tmp_path, coded):
    leaves = make_trees(
        np.random.default_rng(0), 3, 0, 3, output_form="one", threshold_values=ROW[0]
    )
    stage = Stage(leaves, np.arange(0), "softmax", acquisition="node")
    constant_cascade = replace(make_linear_cascade(), stages=(stage,))
    source = write_cascade(constant_cascade, tmp_path, name="m", coded=coded)
    assert (source.coded, source.n_slots) == (None, 0)
    (compiled_model,) = compile_models([(source, constant_cascade.stage_n_outputs)], flags=("-O0",))
    assert compiled_model.count_selftest_failures() == 0


# -- compilers -------------------------------------------------------------------------------


# FLT_EVAL_METHOD (C99, 5.2.4.2.2): with 1 and 2, sums of floats have the precision of double and
# long double. The value 16 (C23) concerns half precision only.
@pytest.mark.parametrize(("method", "is_accepted"), [(0, True), (16, True), (1, False), (2, False)])
def test_compilers_that_do_not_round_floats_after_each_step_are_refused(
    tmp_path, method, is_accepted
):
    write_cascade(make_linear_cascade(), tmp_path, name="m")
    flags = ("-U__FLT_EVAL_METHOD__", f"-D__FLT_EVAL_METHOD__={method}")
    process = compile_source(tmp_path, *flags)
    assert (process.returncode == 0) == is_accepted, process.stderr
    assert is_accepted or "sums must be rounded to float after each step" in process.stderr


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_flags_that_change_the_meaning_of_nan_are_refused(tmp_path, flag):
    write_cascade(make_linear_cascade(), tmp_path, name="m")
    process = compile_source(tmp_path, flag)
    assert process.returncode != 0
    assert "do not use -ffast-math" in process.stderr


@pytest.mark.parametrize("optimization", ["-O0", "-O1", "-O2", "-Os"])
def test_kernel_machines_of_few_features_compile_without_a_warning(tmp_path, optimization):
    def make_kernel_stage(n_inputs: int) -> Stage:
        model = KernelModel(
            mean=np.zeros(n_inputs, np.float32), scale=np.ones(n_inputs, np.float32),
            landmarks=np.ones((2, n_inputs), np.float32), rate=np.float32(0.5),
            weights=np.ones((2, 3), np.float32), bias=np.zeros(3, np.float32),
        )  # fmt: skip
        return Stage(model, np.arange(n_inputs), "softmax")

    stages = make_kernel_stage(0), make_kernel_stage(1)
    cascade = replace(make_linear_cascade(), stages=stages, thresholds=(0.5, None))
    write_cascade(cascade, tmp_path, name="m")
    process = compile_source(tmp_path, optimization)
    assert process.returncode == 0, process.stderr


# -- missing values -------------------------------------------------------------------------


#: Outcomes in C; 0 is a stop at a stage.
OFFLOAD, FALLBACK, ERROR = 1, 2, 3


def test_rows_are_offloaded_if_the_cloud_does_not_need_the_missing_value(tmp_path):
    """The stages read a and b, then c; the cloud reads a, c and e; none takes missing values."""
    bundle = small_bundle.write_bundle(tmp_path / "bundle")
    source = to_c(bundle, tmp_path / "c", name="m")
    n_outputs = [1, 1]  # of each stage
    (compiled_model,) = compile_models([(source, n_outputs)], flags=("-O0",))
    # Each case has the values of a, b and c, the outcomes in Python and in C, and the feature that
    # C refuses, also if it offloads the row.
    nan, inf = np.nan, np.inf
    cases = [
        ((1, nan, 0), "cloud", OFFLOAD, "b"),
        ((nan, 0, 0), "error", ERROR, "a"),
        ((nan, nan, 0), "error", ERROR, "a"),
        ((0, inf, 0), "error", ERROR, "b"),
        ((nan, inf, 0), "error", ERROR, "b"),
        ((0, 0, nan), "fallback", FALLBACK, "c"),
        # the caller of the C code finds that c is missing when it makes the request
        ((0, nan, nan), "error", OFFLOAD, "b"),
    ]
    values, expected_routes, expected_outcomes, refused_names = zip(*cases, strict=True)
    rows = np.array([[*abc, 0, 0, 0] for abc in values], np.float32)
    link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        answers = device.answer_many(rows)
    routes = ["error" if isinstance(answer, SensorError) else answer.route for answer in answers]
    assert routes == list(expected_routes)
    c_answers = compiled_model(rows)
    assert c_answers.outcomes.tolist() == list(expected_outcomes)
    assert [small_bundle.NAMES[index] for index in c_answers.refused] == list(refused_names)


def test_the_self_test_leaves_out_rows_that_the_c_refuses(tmp_path):
    rows = np.array([small_bundle.HARD_ROW] * 5, np.float32)
    rows[0, 0], rows[1, 2] = np.nan, np.inf  # the stages read a, b and c
    rows[2, 3] = np.nan  # no stage reads d
    bundle = small_bundle.write_bundle(tmp_path / "bundle")
    source = to_c(bundle, tmp_path / "c", name="m", sample=rows)
    assert source.sample_rows == 3
    (compiled_model,) = compile_models([(source, [1, 1])], flags=("-O0",))
    assert compiled_model.count_selftest_failures() == 0


# -- builds without the flags of the Makefile --------------------------------------------------


def _has_fma() -> bool:
    """Whether the processor has the x86-64 instructions for fused multiply-add."""
    processor_file = Path("/proc/cpuinfo")
    if not processor_file.is_file():
        return False
    return " fma " in processor_file.read_text().replace("\n", " ")


@pytest.mark.slow
@pytest.mark.skipif(not _has_fma(), reason="this processor has no x86-64 FMA instructions")
def test_a_build_without_the_makefiles_flags_decides_the_same(tmp_path):
    """The sources forbid fused multiply-add, which gcc uses by default if it is available."""
    rng = np.random.default_rng(0)
    linear_model = LinearModel(
        mean=rng.normal(size=4).astype("f4"), scale=rng.gamma(2.0, size=4).astype("f4"),
        weights=rng.normal(size=(4, 3)).astype("f4"), bias=rng.normal(size=3).astype("f4"),
    )  # fmt: skip
    stages = (Stage(linear_model, np.arange(4), "softmax"),)
    rows = rng.normal(size=(64, 4)).astype("f4")
    write_cascade(replace(make_linear_cascade(), stages=stages, rows=rows), tmp_path, name="m")

    def selftest_fails() -> bool:
        sources = ["m.c", "m_names.c", "m_selftest.c", "main.c"]
        command = [*(compiler_command() or ()), "-O2", "-mfma", *sources, "-o", "plain", "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return subprocess.run([tmp_path / "plain"], capture_output=True, check=False).returncode > 0

    assert not selftest_fails()
    source_file = tmp_path / "m.c"
    pragmas = "#pragma (GCC optimize|STDC FP_CONTRACT).*"
    source_file.write_text(re.sub(pragmas, "", source_file.read_text()))
    assert selftest_fails()  # the rows reveal a fused multiply-add
