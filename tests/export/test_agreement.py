"""No decision differs, whoever computes it: estimator, onnxruntime, numpy, walkers or C.

Small systems are fitted to each data set (of each kind to the two that scikit-learn carries, of
every other kind in turn to the shared ones), packed, and asked about held-out rows, rows at the
very thresholds of their trees and a float32 step beside them, denormal numbers and zeros of both
signs, missing values where they take them, and all of that 1e6 higher. Outputs of every stage are
compared bit for bit, then exits, labels, purchases and costs. The shared data sets need
``../shared/data`` (or GATEWISE_DATA) and are slow.
"""

from __future__ import annotations

import functools
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

from benchmarks.c99.compiled import Compiled, build, compiler
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
from tests.support.prices import grouped_prices
from tests.support.shared_data import shared_data

Matrix = NDArray[np.float32]

CARRIED = {"wine": load_wine, "digits": load_digits}
SHARED = (
    "cleveland_heart", "covertype", "hapt", "letter", "mbne_tiny", "mq2008", "occupancy", "sonar",
    "statlog_heart", "thyroid",
)  # fmt: skip
OFFSETS = (0.0, 1e6)
MOST_COLUMNS = 16
TAKE_MISSING = ("staged-missing", "cegb", "miser", "regressor")
VALUES = ("regressor", "ranker")


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to fit on, to judge on and to ask about."""

    x: Matrix
    y: NDArray[np.int64]
    x_val: Matrix
    y_val: NDArray[np.int64]
    rows: Matrix


@functools.cache
def problem(name: str, offset: float) -> Problem:
    if name in CARRIED:
        x, y = CARRIED[name](return_X_y=True)
    else:
        with np.load(shared_data(f"{name}.npz")) as found:
            x, y = found["X"], found["y"]
    # every so many columns of wide tables: fits stay quick
    x = np.asarray(x[:, :: -(-x.shape[1] // MOST_COLUMNS)], np.float32) + np.float32(offset)
    y = np.unique(y, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    each = max(200 // (y.max() + 1), 9)
    kept = np.concatenate(
        [rng.permutation(np.flatnonzero(y == c))[:each] for c in range(y.max() + 1)]
    )
    kept = kept[np.isfinite(x[kept]).all(axis=1)]
    fit, rest = train_test_split(kept, test_size=0.5, stratify=y[kept], random_state=0)
    held, asked = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=0)
    return Problem(x[fit], y[fit], x[held], y[held], x[asked])


def unfitted(kind: str, costs: FeatureCosts, n_classes: int) -> Any:
    f0 = ExtraTreesClassifier(10, max_depth=8, random_state=0)
    few: dict[str, Any] = {"n_stages": 2, "effort": "low", "random_state": 0}
    small: dict[str, Any] = {"penalties": (0.02,), "n_rounds": 6, "random_state": 0}
    gate: dict[str, Any] = {"p_full": (0.4,), "penalties": (0.01,), "random_state": 0}
    return {
        "staged": lambda: StagedCascade(
            f0, costs, families=("extra-trees", "linear"), max_loss=0.05, **few
        ),
        "staged-missing": lambda: StagedCascade(
            f0, costs, families=("boosting",), allow_missing=True, **few
        ),
        "gated-trees": lambda: AdaptGBRT(f0, costs, n_rounds=6, stop="gate", **gate),
        "gated-lines": lambda: AdaptLin(f0, costs, n_starts=1, stop="gate", **gate),
        "trees-alone": lambda: AdaptGBRT(f0, costs, n_rounds=6, stop="margin", **gate),
        "lines-alone": lambda: AdaptLin(f0, costs, n_starts=1, stop="margin", **gate),
        "forest": lambda: BudgetForest(costs, n_estimators=4, random_state=0),
        "pruned": lambda: BudgetPrune(costs, n_estimators=4, n_points=6, random_state=0),
        "cegb": lambda: CEGBClassifier(costs, allow_missing=True, **small),
        "miser": lambda: GreedyMiser(costs, allow_missing=True, **small),
        "regressor": lambda: CEGBRegressor(
            costs, accounting="coupled", allow_missing=True, **small
        ),
        "ranker": lambda: CEGBRanker(costs, **small),
    }[kind]()


KINDS = (
    "staged", "staged-missing", "gated-trees", "gated-lines", "trees-alone", "lines-alone",
    "forest", "pruned", "cegb", "miser", "regressor", "ranker",
)  # fmt: skip

HIGHER_KINDS = ("staged-missing", "gated-trees", "gated-lines", "forest", "cegb", "regressor")
"""Fitted to rows 1e6 higher: all of them on wine, of the shared sets two each in turn."""


@dataclass(frozen=True, eq=False)
class Case:
    """A fitted system, its bundle, and the rows that it is asked about."""

    kind: str
    system: Any
    bundle: Bundle
    rows: Matrix


def fitted(kind: str, name: str, offset: float, place: Path) -> Case:
    data = problem(name, offset)
    system = unfitted(kind, grouped_prices(data.x.shape[1]), data.y.max() + 1)
    judges: tuple[Any, ...] = (data.x_val, data.y_val)
    more: dict[str, Any] = {}
    if kind == "ranker":
        more["qid"] = np.arange(len(data.y)) // 8
        judges = (*judges, np.arange(len(data.y_val)) // 8)
    system.fit(data.x, data.y, validation=judges, **more)
    if hasattr(system, "offload"):  # a point where some stop and some go on
        costs = [point.cost for point in system.operating_points_]
        system = system.at(budget=float(np.median(costs)))
    bundle = pack(system, place / kind, sample=data.rows[:16], name=kind)
    rows = hard_rows(system, data.rows, missing=kind in TAKE_MISSING)
    return Case(kind, system, bundle, rows)


def hard_rows(system: Any, rows: Matrix, *, missing: bool) -> Matrix:
    """Real rows, and such at thresholds, with denormals, zeros and perhaps NaN."""
    rng = np.random.default_rng(0)
    parts = [rows]
    for stage in system.stages_:
        model = stage.model
        if isinstance(model, TreeEnsemble) and (inner := np.flatnonzero(model.feature >= 0)).size:
            nodes = rng.choice(inner, min(len(inner), 60), replace=False)
            limit = np.minimum(model.threshold[nodes], np.finfo(np.float32).max)
            low = np.nextafter(limit, np.float32(-np.inf))
            high = np.minimum(np.nextafter(limit, np.float32(np.inf)), np.finfo(np.float32).max)
            columns = stage.features[model.feature[nodes]]
            for value in (low, limit, high):
                at = rows[rng.integers(0, len(rows), len(nodes))].copy()
                at[np.arange(len(nodes)), columns] = value
                parts.append(at)
    odd = np.array([1e-45, -1e-45, 1e-39, -1e-39, 0.0, -0.0], np.float32)
    strange = rows[rng.integers(0, len(rows), 60)].copy()
    strange = np.where(rng.random(strange.shape) < 0.5, rng.choice(odd, strange.shape), strange)
    parts += [strange, np.tile(odd[:, None], (1, rows.shape[1]))]
    if missing:
        absent = rows[rng.integers(0, len(rows), 60)].copy()
        absent[rng.random(absent.shape) < 0.3] = np.nan
        parts += [absent, np.full((1, rows.shape[1]), np.nan, np.float32)]
    return np.ascontiguousarray(np.concatenate(parts), np.float32)


def assert_bits(got: Matrix, expected: Matrix, who: str) -> None:
    """Every bit the same, and one NaN as good as another."""
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), f"{who}: {np.count_nonzero(~same.all(axis=1))} of {len(got)} rows differ"


def python_witnesses(case: Case) -> None:
    system, bundle, rows = case.system, case.bundle, case.rows
    expected = [np.ascontiguousarray(stage.margins(rows)) for stage in system.stages_]
    exits, meter = system.exit_stage(rows), Meter(bundle.manifest.feature_costs())
    for runner in ("onnxruntime", "numpy"):
        stages = load_stages(bundle, runner=runner)
        device_self_test(bundle, stages)
        outputs = stage_runs.run_all(stages, rows)
        for output, margins in zip(outputs, expected, strict=True):
            assert_bits(output.outputs, margins, f"{case.kind}: {runner}")
        left = stage_runs.exits(stages, outputs)
        if system.high_cost_model_ is None:
            left = np.minimum(left, len(stages) - 1)
        assert left.tolist() == exits.tolist()
        for s, stage in enumerate(system.stages_):  # one row at a time, as a device goes
            bought = np.broadcast_to(stage.acquired(rows), rows.shape)[:, stage.features]
            for i in range(0, len(rows), 11):
                reading = Reading(rows[i], meter, lambda: np.inf)
                output = stages[s].visit(reading, allow_missing=True)
                assert_bits(
                    np.float32([output.outputs]), expected[s][i : i + 1], f"{runner}, row {i}"
                )
                assert reading.acquired[stage.features].tolist() == bought[i].tolist()
    assert verify_graphs(bundle, rows).agrees
    report = verify(system, bundle, rows)
    assert report.differing_decisions == report.differing_costs == 0
    assert report.max_margin_difference == 0
    assert report.differing_labels <= close_calls(system, rows)


def close_calls(system: Any, rows: Matrix) -> int:
    """Rows for which the high-cost model's two best classes tie.

    scikit-learn adds up a forest in float64 and the cloud's graph in float32, so that a tie may
    fall either way. The stages' decisions do not depend on it.
    """
    f0 = system.high_cost_model_
    if f0 is None:
        return 0
    best = np.sort(f0.predict_proba(rows), axis=1)[:, -2:]
    return int(np.count_nonzero(best[:, 1] - best[:, 0] < 1e-6))


def c_witness(case: Case, compiled: Compiled) -> None:
    system, rows = case.system, case.rows
    said, exits = compiled(rows), system.exit_stage(rows)
    last = np.minimum(exits, len(system.stages_) - 1)
    outputs = [stage.margins(rows) for stage in system.stages_]
    for got, margins in zip(said.outputs, outputs, strict=True):
        assert_bits(np.ascontiguousarray(got), np.ascontiguousarray(margins), f"{case.kind}: C")
    assert said.exits.tolist() == exits.tolist()
    local = np.stack([labels(stage.run(rows)[0]) for stage in system.stages_])
    assert said.labels.tolist() == local[last, np.arange(len(rows))].tolist()
    stays = exits < len(system.stages_)
    places = np.searchsorted(system.classes_, system.predict(rows))
    assert said.labels[stays].tolist() == places[stays].tolist()
    bought = np.zeros(rows.shape, bool)
    for s, stage in enumerate(system.stages_):
        bought |= np.broadcast_to(stage.acquired(rows), rows.shape) & (last >= s)[:, None]
    assert said.bought.sum(axis=1).tolist() == bought.sum(axis=1).tolist()
    assert compiled.selftest() == 0


def agree_everywhere(name: str, offset: float, place: Path) -> None:
    kinds = HIGHER_KINDS if offset else KINDS
    if name in SHARED:
        at = SHARED.index(name)
        first = 2 * at % len(kinds)
        kinds = kinds[first : first + 2] if offset else kinds[at % 2 :: 2]
    cases = [fitted(kind, name, offset, place) for kind in kinds]
    for case in cases:
        python_witnesses(case)
    if compiler() is None:
        pytest.skip("Python's witnesses agree; no C compiler here (cc, gcc or clang) for the last")
    classifying = [case for case in cases if case.kind not in VALUES]
    sources = []
    for i, case in enumerate(classifying):
        source = to_c(
            case.bundle, place / f"c_{case.kind}", name=f"m{i}", coded=("float", 16)[i % 2]
        )
        sources.append((source, [stage.model.n_outputs for stage in case.system.stages_]))
    flags = ("-O0" if name in SHARED else "-O1",)  # -O1 takes gcc twice as long
    for case, compiled in zip(classifying, build(sources, flags=flags), strict=True):
        c_witness(case, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("offset", OFFSETS)
def test_no_decision_differs_on_wine(offset, tmp_path):
    agree_everywhere("wine", offset, tmp_path)


@pytest.mark.slow
def test_no_decision_differs_with_ten_classes(tmp_path):
    agree_everywhere("digits", 0.0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", SHARED)
def test_no_decision_differs_on_shared_data(name, offset, tmp_path):
    agree_everywhere(name, offset, tmp_path)


# -- any rows at all -----------------------------------------------------------------------

NUMBERS = st.floats(width=32, allow_infinity=False, allow_nan=False)
ODD = st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1e6, 1e6 + 0.0625])


@pytest.fixture(scope="module")
def of_wine(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Systems of trees: what rows as wild as these mean to a sum of products is infinite."""
    place = tmp_path_factory.mktemp("agreement")
    return [
        fitted(kind, "wine", 0.0, place) for kind in ("staged-missing", "forest", "cegb", "miser")
    ]


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=arrays(np.float32, (4, 13), elements=NUMBERS | ODD), holes=arrays(np.bool_, (4, 13)))
def test_random_rows_are_decided_as_by_the_system(of_wine, rows, holes):
    for case in of_wine:
        x = np.where(holes, np.float32(np.nan), rows) if case.kind in TAKE_MISSING else rows
        expected = [np.ascontiguousarray(stage.margins(x)) for stage in case.system.stages_]
        for runner in ("onnxruntime", "numpy"):
            stages = load_stages(Bundle.open(case.bundle.path), runner=runner)
            outputs = stage_runs.run_all(stages, x)
            for output, margins in zip(outputs, expected, strict=True):
                assert_bits(output.outputs, margins, f"{case.kind}: {runner}")
            left = np.minimum(
                stage_runs.exits(stages, outputs),
                len(stages) - (case.system.high_cost_model_ is None),
            )
            assert left.tolist() == case.system.exit_stage(x).tolist()
