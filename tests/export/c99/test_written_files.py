"""Files beside the model's: names and the Makefile, and models with little in them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from benchmarks.c99.compiled import STRICT, build, compiler
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

#: Names that C does not take as they are; two that would be one identifier; a trigraph.
NAMES = ("temp, °C", "a-b", 'a"b', "??/\\")
CLASSES = ("ok", "not ok", "not-ok")
ROW = np.array([[1.5, -2, 0.25, 8]], np.float32)


def cascade() -> Cascade:
    """A linear stage that reads all columns and answers everything."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 4
    line = LinearModel(np.zeros(4, np.float32), np.ones(4, np.float32), weights, np.zeros(3, "f4"))
    return Cascade(
        title="plant 1", stages=(Stage(line, np.arange(4), "softmax"),), thresholds=(None,),
        feature_names=NAMES, classes=CLASSES, takes_missing=False, offloads=False,
        cloud_takes_missing=False, rows=ROW,
    )  # fmt: skip


def compiled(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*(compiler() or ()), *STRICT, "-c", *flags, "-o", "out.o", "m.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


# -- names -----------------------------------------------------------------------------------


def test_features_and_classes_have_enums_and_names(tmp_path):
    write_cascade(cascade(), tmp_path, name="m")
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
    command = [*(compiler() or ()), *STRICT, "-o", "names", "names.c", "m_names.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "names"], capture_output=True, check=True).stdout
    assert said.decode().splitlines() == [*NAMES, "not-ok"]


def test_no_function_of_its_own_is_called_as_one_of_a_model_may_be():
    """A model of the name ``leaf`` has a function ``leaf_value``."""
    templates = (resources.files("gatewise_export.c99") / "templates").iterdir()
    text = "\n".join(file.read_text() for file in templates)
    public = tuple(f"_{name}" for name in re.findall(r"\$\{p\}_(\w+)", text))
    own = re.findall(r"^static [\w${} *]*?\b([a-z]\w*)\(", text, re.MULTILINE)
    assert {"acquire_slots", "leaf_number", "fft"} < set(own)
    assert not [name for name in own if name.endswith(public)]


# -- models with little in them ----------------------------------------------------------------


def test_the_self_test_of_stages_that_all_left_their_models_out(tmp_path):
    """No label is to be answered then, -1 in the table of expected ones."""
    never = replace(cascade(), offloads=True, lean=True)
    (c,) = build([(write_cascade(never, tmp_path, name="m"), never.outputs)], flags=("-O0",))
    assert c.selftest() == 0
    assert c(ROW).labels.tolist() == [-1]


@pytest.mark.parametrize("coded", [None, 8])
def test_trees_without_a_test_have_nothing_to_code(tmp_path, coded):
    leaves = make_trees(np.random.default_rng(0), 3, 0, 3, form="one", marks=ROW[0])
    stage = Stage(leaves, np.arange(0), "softmax", acquisition="node")
    constant = replace(cascade(), stages=(stage,))
    source = write_cascade(constant, tmp_path, name="m", coded=coded)
    assert (source.coded, source.n_slots) == (None, 0)
    (c,) = build([(source, constant.outputs)], flags=("-O0",))
    assert c.selftest() == 0


# -- compilers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "taken"), [(0, True), (16, True), (1, False), (2, False)])
def test_only_compilers_that_round_floats_after_each_step(tmp_path, method, taken):
    write_cascade(cascade(), tmp_path, name="m")
    flags = ("-U__FLT_EVAL_METHOD__", f"-D__FLT_EVAL_METHOD__={method}")
    done = compiled(tmp_path, *flags)
    assert (done.returncode == 0) == taken, done.stderr
    assert taken or "sums must be rounded to float after each step" in done.stderr


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-Os"])
def test_kernel_machines_of_few_features_compile_without_a_warning(tmp_path, level):
    def machine(k: int) -> Stage:
        model = KernelModel(
            np.zeros(k, np.float32), np.ones(k, np.float32), np.ones((2, k), np.float32),
            np.float32(0.5), np.ones((2, 3), np.float32), np.zeros(3, np.float32),
        )  # fmt: skip
        return Stage(model, np.arange(k), "softmax")

    stages = machine(0), machine(1)
    write_cascade(replace(cascade(), stages=stages, thresholds=(0.5, None)), tmp_path, name="m")
    done = compiled(tmp_path, level)
    assert done.returncode == 0, done.stderr


# -- a value that is missing ---------------------------------------------------------------


def test_what_the_cloud_can_do_without_is_offloaded_as_in_python(tmp_path):
    """The stages read a and b, then c; the cloud reads a, c and e; none takes missing values."""
    bundle = small_bundle.write_bundle(tmp_path / "bundle")
    source = to_c(bundle, tmp_path / "c", name="m")
    (c,) = build([(source, [1, 1])], flags=("-O0",))
    nan, inf = np.nan, np.inf
    rows = np.array(
        [[1, nan, 0, 0, 0, 0], [nan, 0, 0, 0, 0, 0], [nan, nan, 0, 0, 0, 0], [0, inf, 0, 0, 0, 0],
         [nan, inf, 0, 0, 0, 0], [0, 0, nan, 0, 0, 0], [0, nan, nan, 0, 0, 0]],
        np.float32,
    )  # fmt: skip
    link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        answers = device.answer_many(rows)
    told = ["error" if isinstance(a, SensorError) else a.route for a in answers]
    # The last: C would offload it, and its caller finds c missing, too, as it makes the request.
    assert told == ["cloud", "error", "error", "error", "error", "fallback", "error"]
    said = c(rows)
    assert said.outcomes.tolist() == [1, 3, 3, 3, 3, 2, 1]
    assert said.refused.tolist() == [1, 0, 0, 1, 1, 2, 1]


# -- flags that a build may lack ---------------------------------------------------------------


def _has_fma() -> bool:
    info = Path("/proc/cpuinfo")
    return info.is_file() and " fma " in info.read_text().replace("\n", " ")


@pytest.mark.skipif(not _has_fma(), reason="this processor has no fused multiply-add of x86-64")
def test_a_build_without_the_makefiles_flags_decides_the_same(tmp_path):
    """A board's own build may fuse multiply and add, as gcc does by default: sources forbid it."""
    rng = np.random.default_rng(0)
    line = LinearModel(
        rng.normal(size=4).astype("f4"), rng.gamma(2.0, size=4).astype("f4"),
        rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=3).astype("f4"),
    )  # fmt: skip
    stages = (Stage(line, np.arange(4), "softmax"),)
    rows = rng.normal(size=(64, 4)).astype("f4")
    write_cascade(replace(cascade(), stages=stages, rows=rows), tmp_path, name="m")

    def differs() -> bool:
        sources = ["m.c", "m_names.c", "m_selftest.c", "main.c"]
        command = [*(compiler() or ()), "-O2", "-mfma", *sources, "-o", "plain", "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return subprocess.run([tmp_path / "plain"], capture_output=True, check=False).returncode > 0

    assert not differs()
    source = tmp_path / "m.c"
    source.write_text(re.sub("#pragma (GCC optimize|STDC FP_CONTRACT).*", "", source.read_text()))
    assert differs()  # the rows would show it
