"""Violation rates of guarantees, and the part of each bound that they leave unused.

    python -m benchmarks.bench_guarantee [--quick]

A staged cascade is fitted and tuned on 12,000 rows of Letters. The other 8,000 rows are the pool.
Calibration sets are drawn from the pool with replacement, and each set certifies one operating
point. The true risk of that point is its risk on the whole pool. If every class has a bound, the
risk is the largest loss of any class.

The unused part of a bound is compared with a floor, the part that the exact binomial test leaves
unused for the same bound and number of rows. The results are guarantee.json and guarantee.md in
benchmarks/results; ``--quick`` writes them into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.data.cascade_records import cascade_record
from benchmarks.harness import Column
from gatewise_training import StagedCascade
from gatewise_training.data.datasets import Dataset, load
from gatewise_training.operating_points.candidate_points import list_candidates
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.guarantee import Promise, certify

#: Numbers of rows that fit a cascade, choose its candidate points, and certify one of them.
N_TRAINING_ROWS = 8000
N_TUNING_ROWS = 4000
N_CALIBRATION_ROWS = 4000
#: Number of calibration sets per case; the standard error of their share of violations is 1 %, and
#: 3 % in a quick run.
N_RESAMPLINGS = 500
N_QUICK_RESAMPLINGS = 50
#: Confidence of the guarantees. At most 5 % of them may be violated.
CONFIDENCE = 0.95
SEED = 0
#: Largest difference that the rounding of means can cause.
ROUNDING_TOLERANCE = 1e-12
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm")
#: Bound on the loss of each class, by number of classes, for cases with class bounds.
MAX_CLASS_LOSS = {2: 0.02, 26: 0.1}
Case = tuple[str, float, Literal["difference", "classes"]]
CASES: tuple[Case, ...] = (
    *(("offload_rate", rate, "difference") for rate in (0.05, 0.1, 0.2, 0.3, 0.5)),
    *(("max_loss", bound, "difference") for bound in (0.01, 0.02)),
    ("max_loss", 0.01, "classes"),
    *(("budget", bound, "difference") for bound in (6.0, 8.0)),
)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Certify each case on many calibration sets of two cascades."""
    n_resamplings = N_QUICK_RESAMPLINGS if options.quick else N_RESAMPLINGS
    dataset = load(problems.data_file("letter"))
    settings = {
        "data": "letter.npz",
        "train": N_TRAINING_ROWS,
        "tune": N_TUNING_ROWS,
        "pool": len(dataset.y) - N_TRAINING_ROWS - N_TUNING_ROWS,
        "calibration_rows": N_CALIBRATION_ROWS,
        "resamplings": n_resamplings,
        "confidence": CONFIDENCE,
        "seed": SEED,
    }
    label_sets = {"Letters, A-M against N-Z": dataset.y >= 13, "Letters, 26 classes": dataset.y}
    systems = {
        name: _certify_system(dataset, y.astype(int), n_resamplings)
        for name, y in label_sets.items()
    }
    return {"settings": settings, "systems": systems}


def _certify_system(dataset: Dataset, y: NDArray[Any], n_resamplings: int) -> dict[str, Any]:
    rows = np.random.default_rng(SEED).permutation(len(y))
    training_rows, tuning_rows, pool_rows = np.split(
        rows, [N_TRAINING_ROWS, N_TRAINING_ROWS + N_TUNING_ROWS]
    )
    start_time = time.perf_counter()
    system = StagedCascade(random_state=SEED).fit(
        dataset.X[training_rows],
        y[training_rows],
        validation=(dataset.X[tuning_rows], y[tuning_rows]),
    )
    seconds = time.perf_counter() - start_time
    tuning_records, pool_records = (
        [
            cascade_record(system, chain, dataset.X[part], y[part])
            for chain in range(len(system.chains_))
        ]
        for part in (tuning_rows, pool_rows)
    )
    return {
        "stages": [len(chain) for chain in system.chains_],
        "fit_seconds": round(seconds, 1),
        "cloud_accuracy": float(pool_records[0].correctness[-1].mean()),
        "cases": [
            _certify_case(
                tuning_records, pool_records, system.frontier_.points, case, n_resamplings
            )
            for case in CASES
        ],
    }


def _certify_case(
    tuning_records: Sequence[CascadeRecord],
    pool_records: Sequence[CascadeRecord],
    points: Sequence[Any],
    case: Case,
    n_resamplings: int,
) -> dict[str, Any]:
    """Certify on many calibration sets; compare each bound with the risk on the pool."""
    # make the promise, and put the candidate points in the order of their tests
    kind, bound, loss = case
    answers = pool_records[0].exit_answers
    assert answers is not None
    max_class_loss = MAX_CLASS_LOSS[answers.n_classes]
    by_class = None
    if loss == "classes":
        classes = range(answers.n_classes)
        by_class = ClassBounds.from_mappings(
            classes, max_loss=dict.fromkeys(classes, max_class_loss)
        )
    promise = Promise(kind, bound, CONFIDENCE, by_class)
    ordered_candidates = list_candidates(tuning_records, points, promise, n_rows=N_CALIBRATION_ROWS)
    # certify on rows drawn from the pool, and measure the certified point on the whole pool
    rng = np.random.default_rng(SEED)
    reference_accuracy = float(pool_records[-1].correctness[-1].mean())
    pool_points: dict[Any, Any] = {}
    certified_points: list[Any] = []
    method_of_set = []
    for _ in range(n_resamplings):
        calibration_rows = rng.integers(0, len(pool_records[0].weights), N_CALIBRATION_ROWS)
        point = certify(
            [record.take(calibration_rows) for record in pool_records], ordered_candidates, promise
        )
        if point is None:
            method_of_set.append("none")
            continue
        chain_and_thresholds = point.chain, point.thresholds
        if chain_and_thresholds not in pool_points:
            pool_points[chain_and_thresholds] = pool_records[point.chain].measure(
                point.thresholds, point.chain
            )
        certified_points.append(pool_points[chain_and_thresholds])
        assert point.guarantee is not None
        method_of_set.append(point.guarantee["method"])
    # count the certified points that violate the bound on the pool
    risks = np.array([_compute_risk(point, kind, reference_accuracy) for point in certified_points])
    is_violated = risks > bound + ROUNDING_TOLERANCE
    class_figures = None
    if loss == "classes":
        losses = np.array(
            [
                _find_largest_class_loss(pool_records[point.chain], point.thresholds)
                for point in certified_points
            ]
        )
        breaks_class_bound = losses > max_class_loss + ROUNDING_TOLERANCE
        is_violated |= breaks_class_bound
        class_figures = {
            "bound": max_class_loss,
            "violated": int(breaks_class_bound.sum()) / n_resamplings,
            "unused": 1 - float(losses.mean()) / max_class_loss if len(losses) else None,
        }
    # the largest share of violations by chance is 1 - confidence + 2 standard errors
    level = 1 - CONFIDENCE
    return {
        "kind": kind,
        "bound": bound,
        "loss": loss if kind == "max_loss" or loss == "classes" else None,
        "candidates": len(ordered_candidates),
        "certified": len(certified_points),
        "violated": int(is_violated.sum()) / n_resamplings,
        "violated_at_most": level + 2 * math.sqrt(level * CONFIDENCE / n_resamplings),
        "unused": 1 - float(risks.mean()) / bound if certified_points else None,
        "parts": class_figures,
        "unused_by_binomial": _compute_binomial_unused_share(kind, bound),
        **{
            name: fmean(getattr(point, name) for point in certified_points)
            if certified_points
            else None
            for name in ("accuracy", "cost", "offload_rate")
        },
        "methods": dict(sorted(Counter(method_of_set).items())),
    }


def _find_largest_class_loss(record: CascadeRecord, thresholds: Sequence[float | None]) -> float:
    """Compute the largest loss of accuracy in any class, compared with the high-cost model."""
    exits = record.exits(thresholds)
    correctness = record.correctness[exits, np.arange(len(exits))]
    losses = record.correctness[-1] - correctness
    answers = record.exit_answers
    assert answers is not None
    return max(
        float(losses[answers.truth == class_index].mean())
        for class_index in range(answers.n_classes)
    )


def _compute_risk(point: Any, kind: str, reference_accuracy: float) -> float:
    if kind == "max_loss":
        return reference_accuracy - float(point.accuracy)
    return float(point.cost if kind == "budget" else point.offload_rate)


def _compute_binomial_unused_share(kind: str, bound: float) -> float | None:
    """Compute the smallest part of a rate bound that the exact binomial test leaves unused.

    None for a budget, because a cost is not a rate.
    """
    if kind == "budget":
        return None
    largest_count = float(stats.binom.ppf(1 - CONFIDENCE, N_CALIBRATION_ROWS, bound)) - 1
    return 1.0 - largest_count / (N_CALIBRATION_ROWS * bound)


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    settings = results["settings"]
    lines = [
        "# Guarantees",
        "",
        f"`make bench-guarantee` writes this page. {settings['resamplings']} calibration sets of "
        f"Letters with {settings['calibration_rows']:,} rows each certify a bound with confidence "
        f"{settings['confidence']:g}. *Violated* is the share of the sets with a point that breaks "
        "the bound on the whole pool. *Unused* is the part of the bound that the points do not "
        "use, and *binomial* is the part that the best test of a plain rate does not use.",
    ]
    for name, system in results["systems"].items():
        violation_bound = system["cases"][0]["violated_at_most"]
        lines += ["", f"{name} (by chance, at most {violation_bound:.1%} are violated):", ""]
        lines += harness.column_table(CASE_COLUMNS, system["cases"])
    return lines


def _write_bounds(case: Mapping[str, Any]) -> str:
    class_text = "" if case["parts"] is None else f" ({case['loss']} {case['parts']['bound']:g})"
    return f"{case['kind']} {case['bound']:g}{class_text}"


def _write_share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _write_figure(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.4g}"


CASE_COLUMNS = (
    Column("guarantee", _write_bounds),
    Column("violated", lambda case: _write_share(case["violated"])),
    Column("unused", lambda case: _write_share(case["unused"])),
    Column("binomial", lambda case: _write_share(case["unused_by_binomial"])),
    Column("accuracy", lambda case: _write_figure(case["accuracy"])),
    Column("cost", lambda case: _write_figure(case["cost"])),
    Column("offload rate", lambda case: _write_figure(case["offload_rate"])),
)


BENCHMARK = harness.Benchmark(
    name="guarantee",
    quick_help=f"{N_QUICK_RESAMPLINGS} resamplings",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
