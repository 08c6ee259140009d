"""Agreement of all decisions between the estimator, onnxruntime, numpy, device stages and C.

Small systems are fitted, packed, and asked about test rows, rows at the thresholds of their trees
and one float32 step next to them, denormal numbers, zeros of both signs and missing values. The
same systems are also fitted to values that are 1e6 higher. The outputs of each stage must be equal
bit by bit, and so must exits, labels, acquired features and costs. The two data sets of
scikit-learn test all kinds of systems, and each shared data set tests a quarter of them. The shared
data sets need ``../shared/data`` or GATEWISE_DATA.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import train_test_split

from benchmarks.c99.compiled import CompiledModel, compile_models, compiler_command
from gatewise.decision import labels
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.self_checks import self_test as device_self_test
from gatewise_edge.device.stages import load_stages
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_export import Bundle, pack, to_c, verify, verify_graphs
from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    BudgetForest,
    BudgetPrune,
    CEGBClassifier,
    CEGBRanker,
    CEGBRegressor,
    FeatureCosts,
    GreedyMiser,
    StagedCascade,
)
from tests.support import stage_runs
from tests.support.prices import make_grouped_prices
from tests.support.shared_data import find_shared_file

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]

Matrix = NDArray[np.float32]

SCIKIT_LEARN_SETS = {"wine": load_wine, "digits": load_digits}
SHARED_SETS = (
    "cleveland_heart", "covertype", "hapt", "letter", "mbne_tiny", "mq2008", "occupancy", "sonar",
    "statlog_heart", "thyroid",
)  # fmt: skip
#: Numbers that are added to all values; 1e6 makes the rounding to float32 matter.
OFFSETS = (0.0, 1e6)
#: Wide tables lose columns, so that fits stay fast.
MAX_COLUMNS = 16
#: Kinds of systems that accept missing values.
KINDS_WITH_MISSING = ("staged-missing", "cegb", "miser", "regressor")
#: Kinds that predict numbers, not classes.
VALUE_KINDS = ("regressor", "ranker")


@dataclass(frozen=True, eq=False)
class Problem:
    """Training, validation and test rows."""

    X: Matrix
    y: NDArray[np.int64]
    X_validation: Matrix
    y_validation: NDArray[np.int64]
    test_rows: Matrix


@functools.cache
def load_problem(name: str, offset: float) -> Problem:
    if name in SCIKIT_LEARN_SETS:
        X, y = SCIKIT_LEARN_SETS[name](return_X_y=True)
    else:
        with np.load(find_shared_file(f"{name}.npz")) as arrays:
            X, y = arrays["X"], arrays["y"]
    column_step = math.ceil(X.shape[1] / MAX_COLUMNS)
    X = np.asarray(X[:, ::column_step], np.float32) + np.float32(offset)
    y = np.unique(y, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    # About 200 rows, and enough of each class for the two splits below.
    n_classes = y.max() + 1
    n_per_class = max(200 // n_classes, 9)
    sampled_rows = np.concatenate(
        [rng.permutation(np.flatnonzero(y == label))[:n_per_class] for label in range(n_classes)]
    )
    sampled_rows = sampled_rows[np.isfinite(X[sampled_rows]).all(axis=1)]
    fit_rows, other_rows = train_test_split(
        sampled_rows, test_size=0.5, stratify=y[sampled_rows], random_state=0
    )
    validation_rows, test_rows = train_test_split(
        other_rows, test_size=0.5, stratify=y[other_rows], random_state=0
    )
    return Problem(X[fit_rows], y[fit_rows], X[validation_rows], y[validation_rows], X[test_rows])


def make_system(kind: str, costs: FeatureCosts) -> Any:
    """Make a system that is fitted fast."""
    high_cost_model = ExtraTreesClassifier(5, max_depth=5, random_state=0)
    staged_options: dict[str, Any] = {"n_stages": 2, "effort": "low", "random_state": 0}
    boosted_options: dict[str, Any] = {"penalties": (0.02,), "n_rounds": 6, "random_state": 0}
    gate_options: dict[str, Any] = {"p_full": (0.4,), "penalties": (0.01,), "random_state": 0}
    return {
        "staged": lambda: StagedCascade(
            high_cost_model,
            costs,
            families=("extra-trees", "linear"),
            max_loss=0.05,
            **staged_options,
        ),
        "staged-missing": lambda: StagedCascade(
            high_cost_model, costs, families=("boosting",), allow_missing=True, **staged_options
        ),
        "staged-kernels": lambda: StagedCascade(
            high_cost_model, costs, families=("svm",), max_loss=0.05, **staged_options
        ),
        "gated-trees": lambda: AdaptGBRT(
            high_cost_model, costs, n_rounds=6, stop="gate", **gate_options
        ),
        "gated-lines": lambda: AdaptLin(
            high_cost_model, costs, n_starts=1, stop="gate", **gate_options
        ),
        "trees-alone": lambda: AdaptGBRT(
            high_cost_model, costs, n_rounds=6, stop="margin", **gate_options
        ),
        "lines-alone": lambda: AdaptLin(
            high_cost_model, costs, n_starts=1, stop="margin", **gate_options
        ),
        "forest": lambda: BudgetForest(costs, n_estimators=4, random_state=0),
        "pruned": lambda: BudgetPrune(costs, n_estimators=4, n_points=6, random_state=0),
        "cegb": lambda: CEGBClassifier(costs, allow_missing=True, **boosted_options),
        "miser": lambda: GreedyMiser(costs, allow_missing=True, **boosted_options),
        "regressor": lambda: CEGBRegressor(
            costs, accounting="coupled", allow_missing=True, **boosted_options
        ),
        "ranker": lambda: CEGBRanker(costs, **boosted_options),
    }[kind]()


KINDS = (
    "staged", "staged-missing", "staged-kernels", "gated-trees", "gated-lines", "trees-alone",
    "lines-alone", "forest", "pruned", "cegb", "miser", "regressor", "ranker",
)  # fmt: skip

#: Kinds that are fitted to values 1e6 higher; each shared data set tests two of them.
HIGHER_KINDS = ("staged", "gated-trees", "gated-lines", "forest", "cegb", "regressor")


@dataclass(frozen=True, eq=False)
class Case:
    """A fitted system, its bundle and the test rows."""

    kind: str
    system: Any
    bundle: Bundle
    rows: Matrix


def fit_case(kind: str, name: str, offset: float, folder: Path) -> Case:
    problem = load_problem(name, offset)
    system = make_system(kind, make_grouped_prices(problem.X.shape[1]))
    validation: tuple[Any, ...] = (problem.X_validation, problem.y_validation)
    options: dict[str, Any] = {}
    if kind == "ranker":  # queries of eight rows
        options["qid"] = np.arange(len(problem.y)) // 8
        validation = (*validation, np.arange(len(problem.y_validation)) // 8)
    system.fit(problem.X, problem.y, validation=validation, **options)
    if hasattr(system, "offload"):  # a point at which stages answer some rows and offload others
        costs = [point.cost for point in system.operating_points_]
        system = system.at(budget=float(np.median(costs)))
    bundle = pack(system, folder / kind, sample=problem.test_rows[:16], name=kind)
    rows = make_hard_rows(system, problem.test_rows, takes_missing=kind in KINDS_WITH_MISSING)
    return Case(kind, system, bundle, rows)


def make_hard_rows(system: Any, rows: Matrix, *, takes_missing: bool) -> Matrix:
    """Real rows, and altered rows with thresholds, denormals, zeros and optionally NaN."""
    rng = np.random.default_rng(0)
    row_blocks = [rows]
    for stage in system.stages_:
        model = stage.model
        inner_nodes = (
            np.flatnonzero(model.feature >= 0) if isinstance(model, TreeEnsemble) else np.empty(0)
        )
        if len(inner_nodes):
            nodes = rng.choice(inner_nodes, min(len(inner_nodes), 60), replace=False)
            thresholds = np.minimum(model.threshold[nodes], np.finfo(np.float32).max)
            values_below = np.nextafter(thresholds, np.float32(-np.inf))
            values_above = np.minimum(
                np.nextafter(thresholds, np.float32(np.inf)), np.finfo(np.float32).max
            )
            columns = stage.features[model.feature[nodes]]
            for cells in (values_below, thresholds, values_above):
                altered_rows = rows[rng.integers(0, len(rows), len(nodes))].copy()
                altered_rows[np.arange(len(nodes)), columns] = cells
                row_blocks.append(altered_rows)
    # The smallest float32 is 1e-45, and numbers below 1.2e-38 are denormal.
    tiny_values = np.array([1e-45, -1e-45, 1e-39, -1e-39, 0.0, -0.0], np.float32)
    tiny_rows = rows[rng.integers(0, len(rows), 60)].copy()
    tiny_rows = np.where(
        rng.random(tiny_rows.shape) < 0.5, rng.choice(tiny_values, tiny_rows.shape), tiny_rows
    )
    row_blocks += [tiny_rows, np.tile(tiny_values[:, None], (1, rows.shape[1]))]
    if takes_missing:
        rows_with_missing = rows[rng.integers(0, len(rows), 60)].copy()
        rows_with_missing[rng.random(rows_with_missing.shape) < 0.3] = np.nan
        row_blocks += [rows_with_missing, np.full((1, rows.shape[1]), np.nan, np.float32)]
    return np.ascontiguousarray(np.concatenate(row_blocks), np.float32)


def assert_same_bits(outputs: Matrix, expected_outputs: Matrix, source: str) -> None:
    """Check that all bits are equal; all NaN count as equal."""
    assert outputs.dtype == expected_outputs.dtype == np.float32
    assert outputs.shape == expected_outputs.shape
    is_same = (outputs.view(np.uint32) == expected_outputs.view(np.uint32)) | (
        np.isnan(outputs) & np.isnan(expected_outputs)
    )
    assert is_same.all(), (
        f"{source}: {np.count_nonzero(~is_same.all(axis=1))} of {len(outputs)} rows differ"
    )


def assert_python_agrees(case: Case) -> None:
    system, bundle, rows = case.system, case.bundle, case.rows
    expected_margins = [np.ascontiguousarray(stage.margins(rows)) for stage in system.stages_]
    exits = system.exit_stage(rows)
    meter = Meter(bundle.manifest.feature_costs())
    for runner in ("onnxruntime", "numpy"):
        stages = load_stages(bundle, runner=runner)
        device_self_test(bundle, stages)
        outputs = stage_runs.run_all(stages, rows)
        for output, margins in zip(outputs, expected_margins, strict=True):
            assert_same_bits(output.outputs, margins, f"{case.kind}: {runner}")
        stage_exits = stage_runs.exit_indices(stages, outputs)
        if system.high_cost_model_ is None:
            stage_exits = np.minimum(stage_exits, len(stages) - 1)
        assert stage_exits.tolist() == exits.tolist()
        # A device runs single rows; each eleventh is tested, to save time.
        for stage, device_stage, margins in zip(
            system.stages_, stages, expected_margins, strict=True
        ):
            acquired = np.broadcast_to(stage.acquired(rows), rows.shape)[:, stage.features]
            for row_number in range(0, len(rows), 11):
                reading = Reading(rows[row_number], meter, lambda: np.inf)
                output = device_stage.run_instance(reading, allow_missing=True)
                row_margins = np.float32([output.outputs])
                assert_same_bits(
                    row_margins, margins[row_number : row_number + 1], f"{runner}, row {row_number}"
                )
                assert reading.acquired[stage.features].tolist() == acquired[row_number].tolist()
    assert verify_graphs(bundle, rows).agrees
    report = verify(system, bundle, rows)
    assert report.differing_decisions == report.differing_costs == 0
    assert report.max_margin_difference == 0
    assert report.differing_labels <= count_ties(system, rows)


def count_ties(system: Any, rows: Matrix) -> int:
    """Rows for which the high-cost model's two best classes tie.

    scikit-learn sums a forest in float64 and the cloud's graph sums it in float32, so that their
    labels may differ at a tie. The decisions of the stages do not depend on it.
    """
    high_cost_model = system.high_cost_model_
    if high_cost_model is None:
        return 0
    two_largest = np.sort(high_cost_model.predict_proba(rows), axis=1)[:, -2:]
    # The float32 sum of five trees has an error of less than 1e-6.
    return int(np.count_nonzero(two_largest[:, 1] - two_largest[:, 0] < 1e-6))


def assert_c_agrees(case: Case, compiled_model: CompiledModel) -> None:
    system, rows = case.system, case.rows
    c_answers = compiled_model(rows)
    exits = system.exit_stage(rows)
    last_stage = np.minimum(exits, len(system.stages_) - 1)
    outputs = [stage.margins(rows) for stage in system.stages_]
    for output, margins in zip(c_answers.outputs, outputs, strict=True):
        assert_same_bits(
            np.ascontiguousarray(output), np.ascontiguousarray(margins), f"{case.kind}: C"
        )
    assert c_answers.exits.tolist() == exits.tolist()
    stage_labels = np.stack([labels(stage.run(rows)[0]) for stage in system.stages_])
    assert c_answers.labels.tolist() == stage_labels[last_stage, np.arange(len(rows))].tolist()
    is_local = exits < len(system.stages_)
    answered_classes = np.searchsorted(system.classes_, system.predict(rows))
    assert c_answers.labels[is_local].tolist() == answered_classes[is_local].tolist()
    acquired = np.zeros(rows.shape, bool)
    for stage_index, stage in enumerate(system.stages_):
        acquired |= (
            np.broadcast_to(stage.acquired(rows), rows.shape) & (last_stage >= stage_index)[:, None]
        )
    np.testing.assert_array_equal(c_answers.acquired, acquired)
    assert compiled_model.count_selftest_failures() == 0


def assert_agreement(name: str, offset: float, folder: Path) -> None:
    kinds = HIGHER_KINDS if offset else KINDS
    if name in SHARED_SETS:
        set_index = SHARED_SETS.index(name)
        first_kind = 2 * set_index % len(kinds)
        kinds = kinds[first_kind : first_kind + 2] if offset else kinds[set_index % 4 :: 4]
    cases = [fit_case(kind, name, offset, folder) for kind in kinds]
    for case in cases:
        assert_python_agrees(case)
    if compiler_command() is None:
        pytest.skip("Python agrees; this machine has no C compiler (cc, gcc or clang)")
    classifiers = [case for case in cases if case.kind not in VALUE_KINDS]
    sources = []
    for case_number, case in enumerate(classifiers):
        source = to_c(
            case.bundle,
            folder / f"c_{case.kind}",
            name=f"m{case_number}",
            coded=("float", 16)[case_number % 2],
        )
        sources.append((source, [stage.model.n_outputs for stage in case.system.stages_]))
    flags = ("-O0" if name in SHARED_SETS else "-O1",)  # -O1 takes gcc twice as long
    for case, compiled_model in zip(classifiers, compile_models(sources, flags=flags), strict=True):
        assert_c_agrees(case, compiled_model)


@pytest.mark.parametrize("offset", OFFSETS)
def test_no_decision_differs_on_wine(offset, tmp_path):
    assert_agreement("wine", offset, tmp_path)


def test_no_decision_differs_with_ten_classes(tmp_path):
    assert_agreement("digits", 0.0, tmp_path)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", SHARED_SETS)
def test_no_decision_differs_on_shared_data(name, offset, tmp_path):
    assert_agreement(name, offset, tmp_path)


# -- random rows ----------------------------------------------------------------------------

FINITE_NUMBERS = st.floats(width=32, allow_infinity=False, allow_nan=False)
#: Zeros, denormal numbers, extremes, and 1e6 with the next float32.
SPECIAL_NUMBERS = st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1e6, 1e6 + 0.0625]
)


@pytest.fixture(scope="module")
def wine_cases(two_folds, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Systems of trees, because such rows overflow the sums of linear models."""
    folder = tmp_path_factory.mktemp("agreement")
    return [
        fit_case(kind, "wine", 0.0, folder)
        for kind in ("staged-missing", "forest", "cegb", "miser")
    ]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=arrays(np.float32, (4, 13), elements=FINITE_NUMBERS | SPECIAL_NUMBERS),
    is_missing=arrays(np.bool_, (4, 13)),
)
def test_device_stages_decide_random_rows_as_the_system(wine_cases, rows, is_missing):
    for case in wine_cases:
        takes_missing = case.kind in KINDS_WITH_MISSING
        X = np.where(is_missing, np.float32(np.nan), rows) if takes_missing else rows
        expected_margins = [np.ascontiguousarray(stage.margins(X)) for stage in case.system.stages_]
        for runner in ("onnxruntime", "numpy"):
            stages = load_stages(Bundle.open(case.bundle.path), runner=runner)
            outputs = stage_runs.run_all(stages, X)
            for output, margins in zip(outputs, expected_margins, strict=True):
                assert_same_bits(output.outputs, margins, f"{case.kind}: {runner}")
            stage_exits = np.minimum(
                stage_runs.exit_indices(stages, outputs),
                len(stages) - (case.system.high_cost_model_ is None),
            )
            assert stage_exits.tolist() == case.system.exit_stage(X).tolist()
