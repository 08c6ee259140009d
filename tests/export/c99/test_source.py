"""Bitwise agreement of generated C with Python on random cascades and rows at thresholds."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.c99.compiled import STRICT_FLAGS, CompiledModel, compile_models, compiler_command
from gatewise.decision import ALWAYS_STOP, labels, split_outputs, stop_mask
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import lay_out
from gatewise_export.c99.probes import MAX_ROWS, MIN_ROWS, probe_rows
from gatewise_export.c99.writer import write_cascade
from tests.support import avr
from tests.support.c_cascades import DIFFICULT_VALUES, draw_cascade, make_step_cascade
from tests.support.needs import needs_compiler

pytestmark = [
    needs_compiler,
    # The sums of random models overflow in C and numpy.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

FloatArray = NDArray[np.float32]
#: Outcomes in the order of the C enumeration.
STOPPED, OFFLOAD, FALLBACK, ERROR = range(4)
#: Number of random cascades: so many cover all kinds of stages, as a test below asserts.
N_CASCADES = 16

# -- expected decisions ---------------------------------------------------------------------


@dataclass
class Answer:
    """Decision about an instance.

    `stage` gave the label. `exit` is the stage that stopped, or the number of stages if none did. A
    `label`, `stage` or `refused_feature` of -1 stands for none.
    """

    outcome: int
    exit: int
    label: int
    stage: int
    refused_feature: int
    acquired_features: set[int]


def walk_trees(
    trees: TreeEnsemble,
    row: FloatArray,
    features: NDArray[np.int64],
    acquire: Callable[[int], bool],
) -> None:
    """Walk through the trees; acquire each node's feature, until one has an unusable value.

    `acquire` acquires a feature and returns whether its value is usable.
    """
    for root in trees.roots.tolist():
        node = root
        while trees.feature[node] >= 0:
            feature = int(features[trees.feature[node]])
            if not acquire(feature):
                return
            value = row[feature]
            goes_left = value <= trees.threshold[node] or (np.isnan(value) and trees.nan_left[node])
            node = int((trees.left if goes_left else trees.right)[node])


def can_offload_refused_row(cascade: Cascade, row: FloatArray, unusable_columns: list[int]) -> bool:
    """Whether a row that a stage refuses is offloaded.

    The cloud takes no infinite value. It takes a missing value if its model does, or if the request
    lacks the feature.
    """
    request_features = cascade.request_features
    if request_features is None:
        request_features = np.arange(len(row))
    has_invalid_value = any(
        math.isinf(row[column]) or (not cascade.cloud_takes_missing and column in request_features)
        for column in unusable_columns
    )
    return cascade.offloads and not has_invalid_value


def decide_row(cascade: Cascade, row: FloatArray) -> Answer:
    """Decide about one instance by the rules, feature by feature."""
    acquired_features: set[int] = set()
    refused_feature = label = last_stage = -1

    def acquire_feature(column: int) -> bool:
        """Acquire a feature; return whether its value is usable."""
        acquired_features.add(column)
        is_refused_nan = math.isnan(row[column]) and not cascade.takes_missing
        return not (is_refused_nan or math.isinf(row[column]))

    def acquire_or_refuse(column: int) -> bool:
        """Acquire a feature, and record it as refused if its value is unusable."""
        nonlocal refused_feature
        is_usable = acquire_feature(column)
        if not is_usable:
            refused_feature = column
        return is_usable

    n_stages = len(cascade.stages)
    for stage_index, (stage, threshold) in enumerate(
        zip(cascade.stages, cascade.thresholds, strict=True)
    ):
        if stage.acquisition == "node":
            walk_trees(stage.model, row, stage.features, acquire_or_refuse)
            unusable_columns = [refused_feature] if refused_feature >= 0 else []
        else:
            # A stage acquires all its features and refuses an infinite one before a missing one.
            columns = stage.features.tolist()
            unusable_columns = [column for column in columns if not acquire_feature(column)]
            infinite_columns = [column for column in unusable_columns if math.isinf(row[column])]
            refused_feature = next(iter([*infinite_columns, *unusable_columns]), -1)
        if refused_feature >= 0:
            is_offloaded = can_offload_refused_row(cascade, row, unusable_columns)
            outcome = OFFLOAD if is_offloaded else FALLBACK if last_stage >= 0 else ERROR
            return Answer(outcome, n_stages, label, last_stage, refused_feature, acquired_features)
        margins, score = split_outputs(stage.margins(row[None]), stage.score)
        if cascade.stage_has_model[stage_index]:  # without a model the stage only acquires features
            label, last_stage = int(labels(margins)[0]), stage_index
        if stop_mask(score, threshold)[0] or (stage_index == n_stages - 1 and not cascade.offloads):
            return Answer(STOPPED, stage_index, label, last_stage, -1, acquired_features)
    return Answer(OFFLOAD, n_stages, label, last_stage, -1, acquired_features)


# -- the tests -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_cascades(tmp_path_factory: Any) -> list[tuple[Cascade, CompiledModel]]:
    """Random cascades with thresholds as floats, 8-bit and 16-bit codes, in one library."""
    folder = tmp_path_factory.mktemp("c99")
    cascades = [draw_cascade(seed) for seed in range(N_CASCADES)]
    sources = [
        # names differ, because one library must not define a function twice
        write_cascade(
            cascade, folder / str(number), coded=("float", 8, 16)[number % 3], name=f"m{number}"
        )
        for number, cascade in enumerate(cascades)
    ]
    n_outputs = [cascade.stage_n_outputs for cascade in cascades]
    # optimised little, because compilation takes most of the time
    flags = ("-O1", "-Wdouble-promotion", "-Wshadow", "-Wfloat-conversion", "-Wstrict-prototypes")
    libraries = compile_models(list(zip(sources, n_outputs, strict=True)), flags=flags)
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
    assert {all(cascade.stage_has_model) for cascade in cascades} == {False, True}
    options = {(cascade.takes_missing, cascade.offloads) for cascade in cascades}
    assert options == set(itertools.product((False, True), repeat=2))


def feature_value_strategy(cascade: Cascade) -> st.SearchStrategy[float]:
    """Numbers at and next to every threshold, any other floats, NaN and infinity."""
    models = [stage.model for stage in cascade.stages]
    tree_thresholds = [model.threshold for model in models if isinstance(model, TreeEnsemble)]
    thresholds = np.concatenate([DIFFICULT_VALUES, *tree_thresholds])
    neighbours = [np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([thresholds, *neighbours])
    near_threshold = st.sampled_from(numbers[np.isfinite(numbers)].tolist())
    # Around 1e6, float32 numbers are 1/16 apart.
    near_offset = st.integers(-16, 16).map(lambda i: float(np.float32(1e6 + i / 16)))
    # NaN as often as an infinity
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
    # as many as run in a few seconds
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_c_decides_any_row_as_python(compiled_cascades, data):
    cascade, compiled_model = compiled_cascades[data.draw(st.integers(0, N_CASCADES - 1))]
    n_features = len(cascade.feature_names)
    n_cells = 3 * n_features  # of three rows
    cells = data.draw(st.lists(feature_value_strategy(cascade), min_size=n_cells, max_size=n_cells))
    assert_rows_agree(cascade, compiled_model, np.array(cells, np.float32).reshape(3, n_features))


def assert_rows_agree(cascade: Cascade, compiled_model: CompiledModel, rows: FloatArray) -> None:
    """Assert that C and Python have the same answers to rows, and the same margins of stages."""
    c_answers = compiled_model(rows)
    for row_number, row in enumerate(rows):
        expected_answer = decide_row(cascade, row)
        answer = Answer(
            int(c_answers.outcomes[row_number]), int(c_answers.exits[row_number]),
            int(c_answers.labels[row_number]), int(c_answers.stages[row_number]),
            int(c_answers.refused[row_number]),
            set(np.flatnonzero(c_answers.acquired[row_number]).tolist()),
        )  # fmt: skip
        assert answer == expected_answer
    for stage, has_model, outputs in zip(
        cascade.stages, cascade.stage_has_model, c_answers.outputs, strict=True
    ):
        if not has_model:
            assert outputs.shape[1] == 0
            continue
        # Only rows whose values are all usable, because a stage that refuses a row has no margins.
        is_usable = ~np.isinf(rows).any(axis=1)
        is_usable &= cascade.takes_missing | ~np.isnan(rows).any(axis=1)
        margins, expected_margins = outputs[is_usable], stage.margins(rows)[is_usable]
        # bits, because == takes both zeros for equal; a NaN may have any bits
        has_same_bits = margins.view(np.uint32) == expected_margins.view(np.uint32)
        assert (has_same_bits | (np.isnan(margins) & np.isnan(expected_margins))).all()


@pytest.mark.slow
def test_c_decides_rows_of_thresholds_as_python(compiled_cascades):
    rng = np.random.default_rng(5)
    for cascade, compiled_model in compiled_cascades:
        rows = rng.choice(DIFFICULT_VALUES, (60, len(cascade.feature_names)))
        assert_rows_agree(cascade, compiled_model, rows)


def test_all_self_tests_pass(compiled_cascades):
    assert [
        compiled_model.count_selftest_failures() for _, compiled_model in compiled_cascades
    ] == [0] * N_CASCADES


def test_the_self_test_detects_repeated_acquisitions(compiled_cascades, tmp_path):
    """The self-test in C counts the calls of its callback; here the count is altered."""
    cascade, compiled_model = compiled_cascades[0]
    selftest_text = (compiled_model.source.folder / "m0_selftest.c").read_text()
    assert "source->calls++" in selftest_text
    assert "if (source.calls != n_known)" in selftest_text
    altered_text = selftest_text.replace("source->calls++", "source->calls += 2")
    altered_source = write_cascade(cascade, tmp_path / "broken", name="m0")
    (altered_source.folder / "m0_selftest.c").write_text(altered_text)
    (library,) = compile_models([(altered_source, cascade.stage_n_outputs)], flags=("-O0",))
    assert library.count_selftest_failures() > 0


def test_a_nan_margin_does_not_stop_and_has_the_label_of_numpy(tmp_path):
    # (value - mean) * scale is 6e38 for the value 2, which overflows, and 1 * inf - 1 * inf is NaN
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
    (compiled_model,) = compile_models([(source, cascade.stage_n_outputs)], flags=("-O0",))
    assert compiled_model.count_selftest_failures() == 0
    assert_rows_agree(cascade, compiled_model, rows)
    assert compiled_model(rows).exits[0] == 2  # behind both stages, so that neither stops


# -- codes of thresholds, tables of leaves -----------------------------------------------------


@pytest.mark.parametrize(("takes_missing", "n_thresholds"), [(False, 255), (True, 254)])
def test_codes_of_a_byte_distinguish_255_thresholds_or_254_with_nan(
    tmp_path, takes_missing, n_thresholds
):
    """n thresholds need n + 1 codes, and NaN needs one more if it is allowed."""
    cascade = make_step_cascade(n_thresholds, takes_missing=takes_missing)
    source = write_cascade(cascade, tmp_path, coded=8)
    (compiled_model,) = compile_models([(source, cascade.stage_n_outputs)], flags=("-O0",))
    # the highest thresholds have the highest codes, which would overflow first
    highest_thresholds = np.arange(n_thresholds - 3, n_thresholds, dtype=np.float32)
    neighbours = [np.nextafter(highest_thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    far_numbers = np.float32([0, -1, 3e38, *[np.nan] * takes_missing])
    rows = np.concatenate([highest_thresholds, *neighbours, far_numbers])[:, None]
    c_answers = compiled_model(rows)
    expected_margins = cascade.stages[0].margins(rows)
    assert c_answers.outputs[0].tobytes() == expected_margins.tobytes()
    # the margin counts the thresholds below the value
    assert expected_margins.max() == n_thresholds


@pytest.mark.parametrize(
    ("form", "widths"), [("picks", (2, 1, 1, 2)), ("sparse", (2, 2, 1, 2))], ids=str
)
def test_tables_of_leaves_have_indices_of_two_bytes(tmp_path, form, widths):
    """Tables with more than 256 rows, values or entries need two bytes per index.

    `widths` are the bytes per index of rows, of starts of rows, of outputs and of picks.
    """
    rng = np.random.default_rng(0)
    n_thresholds, n_rows, n_outputs = 500, 600, 8  # rows and numbers of more than 256
    # Distinct rows of 500 numbers for the form "picks", and mostly of zeros for "sparse".
    if form == "picks":
        leaf_rows = rng.choice(rng.random(500), (n_rows, n_outputs))
    else:
        # a quotient by 97 is no binary fraction, so that bytes cannot hold it
        row_values = np.arange(1, n_rows + 1)[:, None] / 97
        leaf_rows = row_values * (rng.random((n_rows, n_outputs)) < 0.25)
    stage = make_step_cascade(n_thresholds, takes_missing=False).stages[0]
    # a tree of one threshold has three nodes, each with a row, though only leaves use theirs
    leaves = leaf_rows[np.resize(np.arange(n_rows), 3 * n_thresholds)].astype(np.float32)
    forest = replace(
        # output -1: each tree adds to all outputs
        stage.model, value=leaves, output=np.full(n_thresholds, -1, np.int32),
        base=np.zeros(n_outputs, np.float32),
    )  # fmt: skip
    cascade = replace(
        make_step_cascade(n_thresholds, takes_missing=False),
        stages=(Stage(forest, np.arange(1), "softmax"),), classes=tuple(range(n_outputs)),
    )  # fmt: skip
    assert lay_out(cascade, None).forests[0].leaves.index_widths == widths
    (compiled_model,) = compile_models(
        [(write_cascade(cascade, tmp_path), cascade.stage_n_outputs)], flags=("-O0",)
    )
    assert compiled_model.count_selftest_failures() == 0
    rows = np.arange(-1, n_thresholds + 1, dtype=np.float32)[:, None]
    assert compiled_model(rows).outputs[0].tobytes() == cascade.stages[0].margins(rows).tobytes()


# -- the self-test without a sample ------------------------------------------------------------


@pytest.mark.parametrize("coded", ["float", 8])
def test_generated_rows_detect_a_wrong_comparison(tmp_path, coded):
    """``<`` instead of ``<=`` differs only for values equal to a threshold."""
    cascade = make_step_cascade(20, takes_missing=True)
    sources = [
        write_cascade(cascade, tmp_path / name, name=name, coded=coded)
        for name in ("right", "wrong")
    ]
    # no row of a sample, and the most rows that the writer generates
    assert (sources[0].sample_rows, sources[0].made_rows) == (0, MAX_ROWS)
    source_text = (tmp_path / "wrong" / "wrong.c").read_text()
    altered_text = re.sub(
        r"if \(instance->(value|code)\[slot\] <=", r"if (instance->\1[slot] <", source_text
    )
    assert altered_text != source_text
    (tmp_path / "wrong" / "wrong.c").write_text(altered_text)
    right_library, wrong_library = compile_models(
        [(source, cascade.stage_n_outputs) for source in sources], flags=("-O0",)
    )
    assert right_library.count_selftest_failures() == 0
    assert wrong_library.count_selftest_failures() > 0


def test_generated_rows_hold_only_values_that_the_stages_accept():
    for seed in range(N_CASCADES):
        cascade = draw_cascade(seed)
        rows = probe_rows(cascade)
        assert MIN_ROWS <= len(rows) <= MAX_ROWS
        assert not np.isinf(rows).any()
        assert cascade.takes_missing or not np.isnan(rows).any()
        # features that no stage reads are 0
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
    """On AVR, a struct of bytes and floats has no padding, as with ``-fpack-struct=1``.

    The generated source compiles only if the instance has its stated size.
    """
    for _, compiled_model in compiled_cascades:
        command = [
            *(compiler_command() or ()),
            *STRICT_FLAGS,
            "-fpack-struct=1",
            "-w",
            "-fsyntax-only",
        ]
        source_path = compiled_model.source.folder / f"{compiled_model.source.name}.c"
        process = subprocess.run(
            [*command, source_path], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr


@pytest.mark.slow
@avr.needs_avr_gcc
def test_avr_holds_the_tables_in_flash(compiled_cascades):
    for _, compiled_model in compiled_cascades[:8]:
        folder, name = compiled_model.source.folder, compiled_model.source.name
        text_bytes, *ram_bytes = avr.measure_sections(folder, f"{name}.c", "-fstack-usage")
        assert ram_bytes == [0, 0]
        assert text_bytes > compiled_model.source.table_bytes
        frame_bytes = [
            int(line.split()[1]) for line in (folder / "avr.su").read_text().splitlines()
        ]
        assert sum(frame_bytes) <= compiled_model.source.stack_bytes


@pytest.mark.slow
@avr.needs_avr_gcc
@avr.needs_simavr
@pytest.mark.parametrize("cascade_index", range(6))
def test_the_self_test_passes_on_an_emulated_avr(compiled_cascades, cascade_index):
    _, compiled_model = compiled_cascades[cascade_index]
    name = compiled_model.source.name
    call, files = f"{name}_selftest()", (f"{name}.c", f"{name}_selftest.c")
    assert not avr.count_differing(
        compiled_model.source.folder, call, f"int {name}_selftest(void);", *files
    )
