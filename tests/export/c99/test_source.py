"""C decides as Python does, to the bit: random cascades, rows that meet every threshold."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.c99.avr import count_differing
from benchmarks.c99.compiled import STRICT, Compiled, build, compiler
from gatewise.decision import ALWAYS_STOP, labels, split, stops
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import lay_out
from gatewise_export.c99.probes import probe_rows
from gatewise_export.c99.writer import write_cascade
from tests.support import avr
from tests.support.c_cascades import MARKS, random_cascade, steps
from tests.support.needs import needs_compiler

pytestmark = [
    needs_compiler,
    # random models overflow, in C as in numpy
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

Matrix = NDArray[np.float32]
STOPPED, OFFLOAD, FALLBACK, ERROR = range(4)
N_CASCADES = 16

# -- what must come out --------------------------------------------------------------------


@dataclass
class Answer:
    outcome: int
    exit: int
    label: int
    stage: int
    refused: int
    bought: set[int]


def path(trees: TreeEnsemble, row: Matrix, ask: Any) -> None:
    """Ask for columns in the order of a walk; ask returns whether the value may be used."""
    for root in trees.roots.tolist():
        node = root
        while trees.feature[node] >= 0:
            column = int(trees.feature[node])
            if not ask(column):
                return
            v = row[column]
            left = v <= trees.threshold[node] or (np.isnan(v) and trees.nan_left[node])
            node = int((trees.left if left else trees.right)[node])


def decide(cascade: Cascade, row: Matrix) -> Answer:
    """The rules, one instance and one feature at a time."""
    bought: set[int] = set()
    refused = label = last = -1

    def unusable(column: int) -> bool:
        bought.add(column)
        missing = math.isnan(row[column]) and not cascade.takes_missing
        return missing or math.isinf(row[column])

    def ask(column: int) -> bool:
        nonlocal refused
        refused = column if unusable(column) else refused
        return refused < 0

    n = len(cascade.stages)
    for s, (stage, threshold) in enumerate(zip(cascade.stages, cascade.thresholds, strict=True)):
        if stage.acquisition == "node":
            path(stage.model, row[stage.features], lambda k: ask(int(stage.features[k])))  # noqa: B023
            bad = [refused] if refused >= 0 else []
        else:
            # all of them are acquired; an infinite one is named before a missing one
            bad = [int(k) for k in stage.features if unusable(int(k))]
            refused = next((k for k in bad if math.isinf(row[k])), next(iter(bad), -1))
        if refused >= 0:
            needed = cascade.request if cascade.request is not None else np.arange(len(row))
            stays = any(
                math.isinf(row[k]) or (not cascade.cloud_takes_missing and k in needed) for k in bad
            )
            passed_on = cascade.offloads and not cascade.takes_missing and not stays
            outcome = OFFLOAD if passed_on else FALLBACK if last >= 0 else ERROR
            return Answer(outcome, n, label, last, refused, bought)
        margins, score = split(stage.margins(row[None]), stage.score)
        if cascade.has_model[s]:
            label, last = int(labels(margins)[0]), s
        if stops(score, threshold)[0] or (s == n - 1 and not cascade.offloads):
            return Answer(STOPPED, s, label, last, -1, bought)
    return Answer(OFFLOAD, n, label, last, -1, bought)


# -- the tests -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: Any) -> list[tuple[Cascade, Compiled]]:
    """Random cascades, a third of them float, 8-bit and 16-bit each; one library, one compile."""
    folder = tmp_path_factory.mktemp("c99")
    cascades = [random_cascade(seed) for seed in range(N_CASCADES)]
    sources = [
        write_cascade(c, folder / str(i), coded=("float", 8, 16)[i % 3], name=f"m{i}")
        for i, c in enumerate(cascades)
    ]
    outputs = [c.outputs for c in cascades]
    flags = ("-O1", "-Wdouble-promotion", "-Wshadow", "-Wfloat-conversion", "-Wstrict-prototypes")
    made = build(list(zip(sources, outputs, strict=True)), flags=flags)
    return list(zip(cascades, made, strict=True))


@pytest.mark.slow
def test_the_random_cascades_are_of_all_kinds(compiled):
    stages = [stage for cascade, _ in compiled for stage in cascade.stages]
    models = {type(stage.model) for stage in stages}
    assert models == {TreeEnsemble, LinearModel, KernelModel}
    for name in ("rows", "starts", "picks", "small"):
        forests = [forest for c, _ in compiled for forest in lay_out(c, None).forests]
        assert {getattr(forest.leaves, name) is None for forest in forests} == {False, True}
    assert {stage.acquisition for stage in stages} == {"stage", "node"}
    assert {all(c.has_model) for c, _ in compiled} == {False, True}
    assert {(c.takes_missing, c.offloads) for c, _ in compiled} == {
        (a, b) for a in (False, True) for b in (False, True)
    }


def special(cascade: Cascade) -> st.SearchStrategy[float]:
    """Numbers at, just below and just above every threshold, and those that are no numbers."""
    trees = [stage.model for stage in cascade.stages if isinstance(stage.model, TreeEnsemble)]
    marks = np.concatenate([MARKS, *(t.threshold for t in trees)])
    beside = [np.nextafter(marks, np.float32(way)) for way in (-np.inf, np.inf)]
    finite = np.concatenate([marks, *beside])
    near = st.sampled_from(finite[np.isfinite(finite)].tolist())
    offset = st.integers(-16, 16).map(lambda i: float(np.float32(1e6 + i / 16)))
    odd = st.sampled_from([math.nan, math.nan, math.inf, -math.inf])
    plain = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.one_of(near, near, near, offset, plain, odd if cascade.takes_missing else near, odd)


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_any_row_is_decided_as_in_python(compiled, data):
    cascade, c = compiled[data.draw(st.integers(0, N_CASCADES - 1))]
    n_features = len(cascade.feature_names)
    values = data.draw(st.lists(special(cascade), min_size=3 * n_features, max_size=3 * n_features))
    x = np.array(values, np.float32).reshape(3, n_features)
    check_rows(cascade, c, x)


def check_rows(cascade: Cascade, c: Compiled, x: Matrix) -> None:
    said = c(x)
    columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    for i, row in enumerate(x):
        expected = decide(cascade, row)
        got = Answer(
            int(said.outcomes[i]), int(said.exits[i]), int(said.labels[i]), int(said.stages[i]),
            int(said.refused[i]), set(columns[said.bought[i]].tolist()),
        )  # fmt: skip
        assert got == expected
    for stage, held, outputs in zip(cascade.stages, cascade.has_model, said.outputs, strict=True):
        if not held:
            assert outputs.shape[1] == 0
            continue
        usable = x[:, stage.features]
        bad = np.isinf(usable) | (np.isnan(usable) & (not cascade.takes_missing))
        # a value that no node of a lazy stage tests may be anything; rows without any suffice
        clean = ~np.isinf(x).any(axis=1) & ~bad.any(axis=1)
        clean &= cascade.takes_missing | ~np.isnan(x).any(axis=1)
        wanted = stage.margins(x)[clean]
        same = wanted.view(np.uint32) == outputs[clean].view(np.uint32)
        assert (same | (np.isnan(wanted) & np.isnan(outputs[clean]))).all()


def test_rows_of_thresholds_alone(compiled):
    rng = np.random.default_rng(5)
    for cascade, c in compiled:
        check_rows(cascade, c, rng.choice(MARKS, (60, len(cascade.feature_names))))


def test_the_self_tests_pass(compiled):
    assert [c.selftest() for _, c in compiled] == [0] * N_CASCADES


def test_each_feature_is_asked_for_once(compiled, tmp_path):
    # the self-test in C counts the calls of its callback; here a count that is off must show
    cascade, c = compiled[0]
    text = (c.source.folder / "m0_selftest.c").read_text()
    assert "source->calls++" in text
    assert "if (source.calls != n_known)" in text
    broken = text.replace("source->calls++", "source->calls += 2")
    other = write_cascade(cascade, tmp_path / "broken", name="m0")
    (other.folder / "m0_selftest.c").write_text(broken)
    (again,) = build([(other, cascade.outputs)], flags=("-O0",))
    assert again.selftest() > 0


def test_a_margin_that_is_nan_goes_on_and_is_the_label_of_numpy(tmp_path):
    # sums that overflow both ways: NaN beside finite margins, whatever their gap
    weights = np.array([[1, 1, -1], [1, -1, -1]], np.float32)
    one = np.ones(2, np.float32)
    line = LinearModel(0 * one, np.float32(3e38) * one, weights, np.zeros(3, np.float32))
    stage = Stage(line, np.arange(2), "softmax")
    x = np.array([[2, 2], [1, 0], [0, 0], [-2, -2], [0.5, -0.25]], np.float32)
    cascade = Cascade(
        title="overflow", stages=(stage, stage), thresholds=(0.0, ALWAYS_STOP),
        feature_names=("a", "b"), classes=(0, 1, 2), takes_missing=False, offloads=True,
        cloud_takes_missing=False, rows=x,
    )  # fmt: skip
    assert np.isnan(stage.margins(x)[0, 1])
    source = write_cascade(cascade, tmp_path, coded=8)
    (c,) = build([(source, cascade.outputs)], flags=("-O0",))
    assert c.selftest() == 0
    check_rows(cascade, c, x)
    assert c(x).exits[0] == 2


# -- codes of thresholds, tables of leaves -----------------------------------------------------


@pytest.mark.parametrize(("takes_missing", "most"), [(False, 255), (True, 254)])
def test_codes_of_a_byte_tell_as_many_thresholds_apart_as_there_are_numbers(
    tmp_path, takes_missing, most
):
    """n thresholds have n + 1 codes; where NaN is a value, it has the last code for itself."""
    cascade = steps(most, takes_missing=takes_missing)
    source = write_cascade(cascade, tmp_path, coded=8)
    (c,) = build([(source, cascade.outputs)], flags=("-O0",))
    highest = np.arange(most - 3, most, dtype=np.float32)
    beside = [np.nextafter(highest, np.float32(way)) for way in (-9, 999)]
    x = np.concatenate([highest, *beside, np.float32([0, -1, 3e38, *[np.nan] * takes_missing])])
    said = c(x[:, None])
    wanted = cascade.stages[0].margins(x[:, None])
    assert said.outputs[0].tobytes() == wanted.tobytes()
    assert wanted.max() == most


@pytest.mark.parametrize(
    ("form", "widths"), [("picks", (2, 1, 1, 2)), ("sparse", (2, 2, 1, 2))], ids=str
)
def test_tables_of_leaves_have_indices_of_two_bytes(tmp_path, form, widths):
    """More than 256 distinct rows, numbers or places in the rows."""
    rng = np.random.default_rng(0)
    n, n_rows, n_outputs = 500, 600, 8
    if form == "picks":
        rows = rng.choice(rng.random(500), (n_rows, n_outputs))
    else:
        rows = np.arange(1, n_rows + 1)[:, None] * (rng.random((n_rows, n_outputs)) < 0.25) / 97
    stage = steps(n, takes_missing=False).stages[0]
    leaves = rows[np.resize(np.arange(n_rows), 3 * n)].astype(np.float32)
    forest = replace(
        stage.model, value=leaves, output=np.full(n, -1, np.int32),
        base=np.zeros(n_outputs, np.float32),
    )  # fmt: skip
    cascade = replace(
        steps(n, takes_missing=False), stages=(Stage(forest, np.arange(1), "softmax"),),
        classes=tuple(range(n_outputs)),
    )  # fmt: skip
    assert lay_out(cascade, None).forests[0].leaves.index_widths == widths
    (c,) = build([(write_cascade(cascade, tmp_path), cascade.outputs)], flags=("-O0",))
    assert c.selftest() == 0
    x = np.arange(-1, n + 1, dtype=np.float32)[:, None]
    assert c(x).outputs[0].tobytes() == cascade.stages[0].margins(x).tobytes()


# -- the self-test without a sample ------------------------------------------------------------


@pytest.mark.parametrize("coded", ["float", 8])
def test_rows_made_from_the_model_find_a_comparison_that_is_off(tmp_path, coded):
    """``<`` instead of ``<=`` differs only at the thresholds themselves."""
    cascade = steps(20, takes_missing=True)
    sources = [
        write_cascade(cascade, tmp_path / name, name=name, coded=coded)
        for name in ("right", "wrong")
    ]
    assert (sources[0].sample_rows, sources[0].made_rows) == (0, 256)
    code = (tmp_path / "wrong" / "wrong.c").read_text()
    wrong = re.sub(r"if \(instance->(value|code)\[slot\] <=", r"if (instance->\1[slot] <", code)
    assert wrong != code
    (tmp_path / "wrong" / "wrong.c").write_text(wrong)
    libraries = build([(source, cascade.outputs) for source in sources], flags=("-O0",))
    assert libraries[0].selftest() == 0
    assert libraries[1].selftest() > 0


def test_made_rows_are_of_the_values_that_the_stages_take():
    for seed in range(N_CASCADES):
        cascade = random_cascade(seed)
        rows = probe_rows(cascade)
        assert 16 <= len(rows) <= 256
        assert not np.isinf(rows).any()
        assert cascade.takes_missing or not np.isnan(rows).any()
        read = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
        assert not np.delete(rows, read, axis=1).any()
    few = steps(3, takes_missing=True)
    values = set(probe_rows(few)[:, 0].tolist())
    beside = [np.nextafter(np.float32(t), np.float32(way)) for t in range(3) for way in (-9, 9)]
    assert {0.0, 1.0, 2.0, *map(float, beside)} <= values


# -- small machines ----------------------------------------------------------------------------


def test_an_instance_has_its_size_where_nothing_is_aligned(compiled):
    """As on AVR: a struct of bytes and floats has no padding."""
    for _, c in compiled:
        command = [*(compiler() or ()), *STRICT, "-fpack-struct=1", "-w", "-fsyntax-only"]
        file = c.source.folder / f"{c.source.name}.c"
        done = subprocess.run([*command, file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@avr.needs_avr_gcc
def test_avr_holds_the_tables_in_flash(compiled):
    for _, c in compiled[:8]:
        folder, name = c.source.folder, c.source.name
        text, *in_ram = avr.sizes(folder, f"{name}.c", "-fstack-usage")
        assert in_ram == [0, 0]
        assert text > c.source.table_bytes
        frames = [int(line.split()[1]) for line in (folder / "avr.su").read_text().splitlines()]
        assert sum(frames) <= c.source.stack_bytes


@avr.needs_avr_gcc
@avr.needs_simavr
@pytest.mark.parametrize("number", range(6))
def test_an_emulated_avr_answers_to_the_bit(compiled, number):
    _, c = compiled[number]
    name = c.source.name
    call, files = f"{name}_selftest()", (f"{name}.c", f"{name}_selftest.c")
    assert not count_differing(c.source.folder, call, f"int {name}_selftest(void);", *files)
