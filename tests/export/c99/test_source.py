"""Bitwise agreement of generated C with Python on random cascades and rows at thresholds."""

from __future__ import annotations

import itertools
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
from benchmarks.c99.compiled import STRICT_FLAGS, CompiledModel, build, compiler_command
from gatewise.decision import ALWAYS_STOP, labels, split_outputs, stop_mask
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import lay_out
from gatewise_export.c99.probes import probe_rows
from gatewise_export.c99.writer import write_cascade
from tests.support import avr
from tests.support.c_cascades import DIFFICULT_VALUES, draw_cascade, make_step_cascade
from tests.support.needs import needs_compiler

pytestmark = [
    needs_compiler,
    # The sums of random models overflow in C and numpy.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

Matrix = NDArray[np.float32]
#: Outcomes in the order of the C enumeration.
STOPPED, OFFLOAD, FALLBACK, ERROR = range(4)
#: Random cascades; so many cover all kinds of stages, see below.
N_CASCADES = 16

# -- expected decisions ---------------------------------------------------------------------


@dataclass
class Answer:
    """Decision about an instance; `stage` answers, and -1 stands for none."""

    outcome: int
    exit: int
    label: int
    stage: int
    refused_feature: int
    acquired_features: set[int]


def walk_trees(
    trees: TreeEnsemble, row: Matrix, features: NDArray[np.int64], is_usable: Any
) -> None:
    """Walk through the trees, and stop when `is_usable` reports that a feature is unusable."""
    for root in trees.roots.tolist():
        node = root
        while trees.feature[node] >= 0:
            feature = int(features[trees.feature[node]])
            if not is_usable(feature):
                return
            value = row[feature]
            goes_left = value <= trees.threshold[node] or (np.isnan(value) and trees.nan_left[node])
            node = int((trees.left if goes_left else trees.right)[node])


def decide_row(cascade: Cascade, row: Matrix) -> Answer:
    """Decide about one instance by the rules, feature by feature."""
    acquired_features: set[int] = set()
    refused_feature = label = last_stage = -1

    def acquire_unusable(column: int) -> bool:
        """Acquire a feature; return whether its value is unusable."""
        acquired_features.add(column)
        is_missing = math.isnan(row[column]) and not cascade.takes_missing
        return is_missing or math.isinf(row[column])

    def is_usable(column: int) -> bool:
        nonlocal refused_feature
        refused_feature = column if acquire_unusable(column) else refused_feature
        return refused_feature < 0

    n_stages = len(cascade.stages)
    for i, (stage, threshold) in enumerate(zip(cascade.stages, cascade.thresholds, strict=True)):
        if stage.acquisition == "node":
            walk_trees(stage.model, row, stage.features, is_usable)
            unusable_columns = [refused_feature] if refused_feature >= 0 else []
        else:
            # A stage acquires all its features and refuses an infinite one before a missing one.
            columns = stage.features.tolist()
            unusable_columns = [column for column in columns if acquire_unusable(column)]
            infinite_columns = [column for column in unusable_columns if math.isinf(row[column])]
            refused_feature = next(iter([*infinite_columns, *unusable_columns]), -1)
        if refused_feature >= 0:
            request_features = (
                cascade.request_features
                if cascade.request_features is not None
                else np.arange(len(row))
            )
            is_needed = any(
                math.isinf(row[column])
                or (not cascade.cloud_takes_missing and column in request_features)
                for column in unusable_columns
            )
            may_offload = cascade.offloads and not cascade.takes_missing and not is_needed
            outcome = OFFLOAD if may_offload else FALLBACK if last_stage >= 0 else ERROR
            return Answer(outcome, n_stages, label, last_stage, refused_feature, acquired_features)
        margins, score = split_outputs(stage.margins(row[None]), stage.score)
        if cascade.has_model[i]:
            label, last_stage = int(labels(margins)[0]), i
        if stop_mask(score, threshold)[0] or (i == n_stages - 1 and not cascade.offloads):
            return Answer(STOPPED, i, label, last_stage, -1, acquired_features)
    return Answer(OFFLOAD, n_stages, label, last_stage, -1, acquired_features)


# -- the tests -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_cascades(tmp_path_factory: Any) -> list[tuple[Cascade, CompiledModel]]:
    """Random cascades with thresholds as floats, 8-bit and 16-bit codes, in one library."""
    folder = tmp_path_factory.mktemp("c99")
    cascades = [draw_cascade(seed) for seed in range(N_CASCADES)]
    sources = [
        write_cascade(cascade, folder / str(i), coded=("float", 8, 16)[i % 3], name=f"m{i}")
        for i, cascade in enumerate(cascades)
    ]
    n_outputs = [cascade.n_outputs for cascade in cascades]
    flags = ("-O1", "-Wdouble-promotion", "-Wshadow", "-Wfloat-conversion", "-Wstrict-prototypes")
    libraries = build(list(zip(sources, n_outputs, strict=True)), flags=flags)
    return list(zip(cascades, libraries, strict=True))


@pytest.mark.slow
def test_the_random_cascades_cover_all_kinds(compiled_cascades):
    stages = [stage for cascade, _ in compiled_cascades for stage in cascade.stages]
    model_types = {type(stage.model) for stage in stages}
    assert model_types == {TreeEnsemble, LinearModel, KernelModel}
    cascades = [cascade for cascade, _ in compiled_cascades]
    forests = [forest for cascade in cascades for forest in lay_out(cascade, None).forests]
    for table_name in ("rows", "starts", "picks", "small"):
        assert {getattr(forest.leaves, table_name) is None for forest in forests} == {False, True}
    assert {stage.acquisition for stage in stages} == {"stage", "node"}
    assert {all(cascade.has_model) for cascade in cascades} == {False, True}
    options = {(cascade.takes_missing, cascade.offloads) for cascade in cascades}
    assert options == set(itertools.product((False, True), repeat=2))


def feature_value_strategy(cascade: Cascade) -> st.SearchStrategy[float]:
    """Numbers at and next to every threshold, any other floats, NaN and infinity."""
    trees = [stage.model for stage in cascade.stages if isinstance(stage.model, TreeEnsemble)]
    thresholds = np.concatenate([DIFFICULT_VALUES, *(ensemble.threshold for ensemble in trees)])
    neighbours = [np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([thresholds, *neighbours])
    near_threshold = st.sampled_from(numbers[np.isfinite(numbers)].tolist())
    # Around 1e6, float32 numbers are 1/16 apart.
    near_offset = st.integers(-16, 16).map(lambda i: float(np.float32(1e6 + i / 16)))
    not_finite = st.sampled_from([math.nan, math.nan, math.inf, -math.inf])
    any_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
    # Numbers near a threshold are the most frequent, because they are the most difficult.
    return st.one_of(
        near_threshold,
        near_threshold,
        near_threshold,
        near_offset,
        any_float,
        not_finite if cascade.takes_missing else near_threshold,
        not_finite,
    )


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_c_decides_any_row_as_python(compiled_cascades, data):
    cascade, compiled = compiled_cascades[data.draw(st.integers(0, N_CASCADES - 1))]
    n_features = len(cascade.feature_names)
    n_cells = 3 * n_features  # of three rows
    cells = data.draw(st.lists(feature_value_strategy(cascade), min_size=n_cells, max_size=n_cells))
    assert_rows_agree(cascade, compiled, np.array(cells, np.float32).reshape(3, n_features))


def assert_rows_agree(cascade: Cascade, compiled: CompiledModel, rows: Matrix) -> None:
    c_answers = compiled(rows)
    columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    for i, row in enumerate(rows):
        expected = decide_row(cascade, row)
        answer = Answer(
            int(c_answers.outcomes[i]), int(c_answers.exits[i]), int(c_answers.labels[i]),
            int(c_answers.stages[i]), int(c_answers.refused[i]),
            set(columns[c_answers.acquired[i]].tolist()),
        )  # fmt: skip
        assert answer == expected
    for stage, has_model, outputs in zip(
        cascade.stages, cascade.has_model, c_answers.outputs, strict=True
    ):
        if not has_model:
            assert outputs.shape[1] == 0
            continue
        cells = rows[:, stage.features]
        is_unusable = np.isinf(cells) | (np.isnan(cells) & (not cascade.takes_missing))
        # Only rows without unusable values are compared. Nodes may skip other values.
        is_usable = ~np.isinf(rows).any(axis=1) & ~is_unusable.any(axis=1)
        is_usable &= cascade.takes_missing | ~np.isnan(rows).any(axis=1)
        expected_margins = stage.margins(rows)[is_usable]
        is_same = expected_margins.view(np.uint32) == outputs[is_usable].view(np.uint32)
        assert (is_same | (np.isnan(expected_margins) & np.isnan(outputs[is_usable]))).all()


def test_c_decides_rows_of_thresholds_as_python(compiled_cascades):
    rng = np.random.default_rng(5)
    for cascade, compiled in compiled_cascades:
        rows = rng.choice(DIFFICULT_VALUES, (60, len(cascade.feature_names)))
        assert_rows_agree(cascade, compiled, rows)


def test_all_self_tests_pass(compiled_cascades):
    assert [compiled.selftest() for _, compiled in compiled_cascades] == [0] * N_CASCADES


def test_the_self_test_detects_repeated_acquisitions(compiled_cascades, tmp_path):
    # The self-test in C counts the calls of its callback and must detect a wrong count.
    cascade, compiled = compiled_cascades[0]
    selftest_text = (compiled.source.folder / "m0_selftest.c").read_text()
    assert "source->calls++" in selftest_text
    assert "if (source.calls != n_known)" in selftest_text
    altered_text = selftest_text.replace("source->calls++", "source->calls += 2")
    altered_source = write_cascade(cascade, tmp_path / "broken", name="m0")
    (altered_source.folder / "m0_selftest.c").write_text(altered_text)
    (library,) = build([(altered_source, cascade.n_outputs)], flags=("-O0",))
    assert library.selftest() > 0


def test_a_nan_margin_does_not_stop_and_has_the_label_of_numpy(tmp_path):
    # Sums overflow to both infinities, so that one margin is NaN.
    weights = np.array([[1, 1, -1], [1, -1, -1]], np.float32)
    ones = np.ones(2, np.float32)
    linear_model = LinearModel(0 * ones, np.float32(3e38) * ones, weights, np.zeros(3, np.float32))
    stage = Stage(linear_model, np.arange(2), "softmax")
    rows = np.array([[2, 2], [1, 0], [0, 0], [-2, -2], [0.5, -0.25]], np.float32)
    cascade = Cascade(
        title="overflow", stages=(stage, stage), thresholds=(0.0, ALWAYS_STOP),
        feature_names=("a", "b"), classes=(0, 1, 2), takes_missing=False, offloads=True,
        cloud_takes_missing=False, rows=rows,
    )  # fmt: skip
    assert np.isnan(stage.margins(rows)[0, 1])
    source = write_cascade(cascade, tmp_path, coded=8)
    (compiled,) = build([(source, cascade.n_outputs)], flags=("-O0",))
    assert compiled.selftest() == 0
    assert_rows_agree(cascade, compiled, rows)
    assert compiled(rows).exits[0] == 2


# -- codes of thresholds, tables of leaves -----------------------------------------------------


@pytest.mark.parametrize(("takes_missing", "n_thresholds"), [(False, 255), (True, 254)])
def test_codes_of_a_byte_distinguish_255_thresholds_or_254_with_nan(
    tmp_path, takes_missing, n_thresholds
):
    """n thresholds need n + 1 codes, and NaN needs one more if it is allowed."""
    cascade = make_step_cascade(n_thresholds, takes_missing=takes_missing)
    source = write_cascade(cascade, tmp_path, coded=8)
    (compiled,) = build([(source, cascade.n_outputs)], flags=("-O0",))
    highest_thresholds = np.arange(n_thresholds - 3, n_thresholds, dtype=np.float32)
    neighbours = [np.nextafter(highest_thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    far_numbers = np.float32([0, -1, 3e38, *[np.nan] * takes_missing])
    rows = np.concatenate([highest_thresholds, *neighbours, far_numbers])[:, None]
    c_answers = compiled(rows)
    expected = cascade.stages[0].margins(rows)
    assert c_answers.outputs[0].tobytes() == expected.tobytes()
    assert expected.max() == n_thresholds


@pytest.mark.parametrize(
    ("form", "widths"), [("picks", (2, 1, 1, 2)), ("sparse", (2, 2, 1, 2))], ids=str
)
def test_tables_of_leaves_have_indices_of_two_bytes(tmp_path, form, widths):
    """Tables with more than 256 rows, values or entries need two bytes per index."""
    rng = np.random.default_rng(0)
    n_thresholds, n_rows, n_outputs = 500, 600, 8
    # Distinct rows of few values for the form "picks", of many values and zeros for "sparse".
    if form == "picks":
        leaf_rows = rng.choice(rng.random(500), (n_rows, n_outputs))
    else:
        leaf_rows = (
            np.arange(1, n_rows + 1)[:, None] * (rng.random((n_rows, n_outputs)) < 0.25) / 97
        )
    stage = make_step_cascade(n_thresholds, takes_missing=False).stages[0]
    leaves = leaf_rows[np.resize(np.arange(n_rows), 3 * n_thresholds)].astype(np.float32)
    forest = replace(
        stage.model, value=leaves, output=np.full(n_thresholds, -1, np.int32),
        base=np.zeros(n_outputs, np.float32),
    )  # fmt: skip
    cascade = replace(
        make_step_cascade(n_thresholds, takes_missing=False),
        stages=(Stage(forest, np.arange(1), "softmax"),), classes=tuple(range(n_outputs)),
    )  # fmt: skip
    assert lay_out(cascade, None).forests[0].leaves.index_widths == widths
    (compiled,) = build([(write_cascade(cascade, tmp_path), cascade.n_outputs)], flags=("-O0",))
    assert compiled.selftest() == 0
    rows = np.arange(-1, n_thresholds + 1, dtype=np.float32)[:, None]
    assert compiled(rows).outputs[0].tobytes() == cascade.stages[0].margins(rows).tobytes()


# -- the self-test without a sample ------------------------------------------------------------


@pytest.mark.parametrize("coded", ["float", 8])
def test_generated_rows_detect_a_wrong_comparison(tmp_path, coded):
    """``<`` instead of ``<=`` differs only for values equal to a threshold."""
    cascade = make_step_cascade(20, takes_missing=True)
    sources = [
        write_cascade(cascade, tmp_path / name, name=name, coded=coded)
        for name in ("right", "wrong")
    ]
    assert (sources[0].sample_rows, sources[0].made_rows) == (0, 256)
    source_text = (tmp_path / "wrong" / "wrong.c").read_text()
    altered_text = re.sub(
        r"if \(instance->(value|code)\[slot\] <=", r"if (instance->\1[slot] <", source_text
    )
    assert altered_text != source_text
    (tmp_path / "wrong" / "wrong.c").write_text(altered_text)
    right_library, wrong_library = build(
        [(source, cascade.n_outputs) for source in sources], flags=("-O0",)
    )
    assert right_library.selftest() == 0
    assert wrong_library.selftest() > 0


def test_generated_rows_hold_only_values_that_the_stages_accept():
    for seed in range(N_CASCADES):
        cascade = draw_cascade(seed)
        rows = probe_rows(cascade)
        assert 16 <= len(rows) <= 256  # the bounds of the writer
        assert not np.isinf(rows).any()
        assert cascade.takes_missing or not np.isnan(rows).any()
        read_features = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
        assert not np.delete(rows, read_features, axis=1).any()
    small_cascade = make_step_cascade(3, takes_missing=True)
    cells = set(probe_rows(small_cascade)[:, 0].tolist())
    neighbours = [
        np.nextafter(np.float32(threshold), np.float32(side))
        for threshold in range(3)
        for side in (-np.inf, np.inf)
    ]
    assert {0.0, 1.0, 2.0, *map(float, neighbours)} <= cells


# -- small machines ----------------------------------------------------------------------------


def test_an_instance_has_its_stated_size_without_padding(compiled_cascades):
    """On AVR, a struct of bytes and floats has no padding."""
    for _, compiled in compiled_cascades:
        command = [
            *(compiler_command() or ()),
            *STRICT_FLAGS,
            "-fpack-struct=1",
            "-w",
            "-fsyntax-only",
        ]
        file = compiled.source.folder / f"{compiled.source.name}.c"
        process = subprocess.run([*command, file], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr


@avr.needs_avr_gcc
def test_avr_holds_the_tables_in_flash(compiled_cascades):
    for _, compiled in compiled_cascades[:8]:
        folder, name = compiled.source.folder, compiled.source.name
        text_bytes, *ram_bytes = avr.measure_sections(folder, f"{name}.c", "-fstack-usage")
        assert ram_bytes == [0, 0]
        assert text_bytes > compiled.source.table_bytes
        frame_bytes = [
            int(line.split()[1]) for line in (folder / "avr.su").read_text().splitlines()
        ]
        assert sum(frame_bytes) <= compiled.source.stack_bytes


@avr.needs_avr_gcc
@avr.needs_simavr
@pytest.mark.parametrize("cascade_index", range(6))
def test_the_self_test_passes_on_an_emulated_avr(compiled_cascades, cascade_index):
    _, compiled = compiled_cascades[cascade_index]
    name = compiled.source.name
    call, files = f"{name}_selftest()", (f"{name}.c", f"{name}_selftest.c")
    assert not count_differing(compiled.source.folder, call, f"int {name}_selftest(void);", *files)
