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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.data.cascade_records import cascade_record
from gatewise_training import StagedCascade
from gatewise_training.data.datasets import Dataset, load
from gatewise_training.operating_points.candidate_points import list_candidates
from gatewise_training.operating_points.class_figures import ClassBounds
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord

TRAIN, TUNE = 8000, 4000
ROWS = 4000
"""Number of calibration rows."""
RESAMPLINGS, QUICK_RESAMPLINGS = 500, 50
CONFIDENCE, SEED = 0.95, 0
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm")
CLASS_LOSS = {2: 0.02, 26: 0.1}
"""Bound on the loss of each class, by number of classes, for cases with class bounds."""
Case = tuple[str, float, Literal["difference", "classes"]]
CASES: tuple[Case, ...] = (
    *(("offload_rate", rate, "difference") for rate in (0.05, 0.1, 0.2, 0.3, 0.5)),
    *(("max_loss", bound, "difference") for bound in (0.01, 0.02)),
    ("max_loss", 0.01, "classes"),
    *(("budget", bound, "difference") for bound in (6.0, 8.0)),
)
HEADER = ("guarantee", "violated", "unused", "binomial", "accuracy", "cost", "offload rate")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Certify each case on many calibration sets of two cascades."""
    resamplings = QUICK_RESAMPLINGS if options.quick else RESAMPLINGS
    data = load(problems.data_file("letter"))
    settings = {
        "data": "letter.npz",
        "train": TRAIN,
        "tune": TUNE,
        "pool": len(data.y) - TRAIN - TUNE,
        "calibration_rows": ROWS,
        "resamplings": resamplings,
        "confidence": CONFIDENCE,
        "seed": SEED,
    }
    labels_of = {"Letters, A-M against N-Z": data.y >= 13, "Letters, 26 classes": data.y}
    systems = {name: _system(data, y.astype(int), resamplings) for name, y in labels_of.items()}
    return {"settings": settings, "systems": systems}


def _system(data: Dataset, y: NDArray[Any], resamplings: int) -> dict[str, Any]:
    rows = np.random.default_rng(SEED).permutation(len(y))
    train, tune, pool = np.split(rows, [TRAIN, TRAIN + TUNE])
    started = time.perf_counter()
    system = StagedCascade(random_state=SEED).fit(
        data.X[train], y[train], validation=(data.X[tune], y[tune])
    )
    seconds = time.perf_counter() - started
    tuning = [cascade_record(system, c, data.X[tune], y[tune]) for c in range(len(system.chains_))]
    records = [cascade_record(system, c, data.X[pool], y[pool]) for c in range(len(system.chains_))]
    return {
        "stages": [len(chain) for chain in system.chains_],
        "fit_seconds": round(seconds, 1),
        "cloud_accuracy": float(records[0].correctness[-1].mean()),
        "cases": [
            _case(tuning, records, system.frontier_.points, case, resamplings) for case in CASES
        ],
    }


def _case(
    tuning: Sequence[CascadeRecord],
    pool: Sequence[CascadeRecord],
    points: Sequence[Any],
    case: Case,
    resamplings: int,
) -> dict[str, Any]:
    """Certify on many calibration sets; compare each bound with the risk on the pool."""
    # make the promise, and put the candidate points in the order of their tests
    kind, bound, loss = case
    answers = pool[0].answers
    assert answers is not None
    class_loss = CLASS_LOSS[answers.n_classes]
    by_class = None
    if loss == "classes":
        classes = range(answers.n_classes)
        by_class = ClassBounds.from_mappings(classes, max_loss=dict.fromkeys(classes, class_loss))
    promise = Promise(kind, bound, CONFIDENCE, by_class)
    started = time.perf_counter()
    order = list_candidates(tuning, points, promise, n_rows=ROWS)
    ordering_seconds = time.perf_counter() - started
    # certify on rows drawn from the pool, and measure the certified point on the whole pool
    rng = np.random.default_rng(SEED)
    reference = float(pool[-1].correctness[-1].mean())
    pool_points: dict[Any, Any] = {}
    certified: list[Any] = []
    methods = []
    started = time.perf_counter()
    for _ in range(resamplings):
        calibration_rows = rng.integers(0, len(pool[0].weights), ROWS)
        point = certify([p.take(calibration_rows) for p in pool], order, promise)
        if point is None:
            methods.append("none")
            continue
        key = point.chain, point.thresholds
        if key not in pool_points:
            pool_points[key] = pool[point.chain].measure(point.thresholds, point.chain)
        certified.append(pool_points[key])
        assert point.guarantee is not None
        methods.append(point.guarantee["method"])
    seconds = (time.perf_counter() - started) / resamplings
    # count the certified points that violate the bound on the pool
    risks = np.array([_risk(point, kind, reference) for point in certified])
    violations = risks > bound + 1e-12
    class_figures = None
    if loss == "classes":
        losses = np.array([_worst_class(pool[p.chain], p.thresholds) for p in certified])
        violations |= losses > class_loss + 1e-12
        class_figures = _class_figures(losses, class_loss, resamplings)
    return {
        "kind": kind,
        "bound": bound,
        "loss": loss if kind == "max_loss" or loss == "classes" else None,
        "candidates": len(order),
        "certified": len(certified),
        "violated": int(violations.sum()) / resamplings,
        "violated_at_most": _allowed(resamplings),
        "unused": 1 - float(risks.mean()) / bound if certified else None,
        "parts": class_figures,
        "unused_by_binomial": _floor(kind, bound),
        "accuracy": _mean(p.accuracy for p in certified),
        "cost": _mean(p.cost for p in certified),
        "offload_rate": _mean(p.offload_rate for p in certified),
        "methods": {m: methods.count(m) for m in sorted(set(methods))},
        "seconds": {"candidates": round(ordering_seconds, 3), "certify": round(seconds, 4)},
    }


def _class_figures(
    losses: NDArray[np.float64], bound: float, resamplings: int
) -> dict[str, float | None]:
    """Violations and unused part of the class bound, over all certified points."""
    return {
        "bound": bound,
        "violated": int((losses > bound + 1e-12).sum()) / resamplings,
        "unused": 1 - float(losses.mean()) / bound if len(losses) else None,
    }


def _worst_class(record: CascadeRecord, thresholds: Sequence[float | None]) -> float:
    """Largest loss of accuracy in any class, compared with the high-cost model."""
    exits = record.exits(thresholds)
    correct = record.correctness[exits, np.arange(len(exits))]
    losses = record.correctness[-1] - correct
    answers = record.answers
    assert answers is not None
    return max(float(losses[answers.truth == c].mean()) for c in range(answers.n_classes))


def _mean(figures: Iterable[float]) -> float | None:
    values = list(figures)
    return sum(values) / len(values) if values else None


def _risk(point: Any, kind: str, reference: float) -> float:
    if kind == "max_loss":
        return reference - float(point.accuracy)
    return float(point.cost if kind == "budget" else point.offload_rate)


def _allowed(resamplings: int) -> float:
    """Largest share of violations that chance explains: 1 - confidence + 2 standard errors."""
    level = 1 - CONFIDENCE
    return level + 2 * math.sqrt(level * CONFIDENCE / resamplings)


def _floor(kind: str, bound: float) -> float | None:
    """Smallest part of a rate bound that the exact binomial test can leave unused.

    None for a budget, because a cost is not a rate.
    """
    if kind == "budget":
        return None
    largest_count = float(stats.binom.ppf(1 - CONFIDENCE, ROWS, bound)) - 1
    return 1.0 - largest_count / (ROWS * bound)


def page(results: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    settings = results["settings"]
    lines = [
        "# Guarantees",
        "",
        f"Letters; {settings['resamplings']} calibration sets of {settings['calibration_rows']:,} "
        f"rows each certify a bound with confidence {settings['confidence']:g}. Violated: share of "
        "the sets whose point breaks the bound on the whole pool. Unused: part of the bound that "
        "the points leave; binomial: the same of the best test of a plain rate. "
        "`make bench-guarantee` writes this page.",
    ]
    for name, system in results["systems"].items():
        violation_bound = system["cases"][0]["violated_at_most"]
        lines += ["", f"{name} (by chance, at most {violation_bound:.1%} are violated):", ""]
        lines += harness.table_lines(HEADER, [_row(case) for case in system["cases"]])
    return lines


def _row(case: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{case['kind']} {case['bound']:g}"
    if case["parts"] is not None:
        name += f" ({case['loss']} {case['parts']['bound']:g})"
    shares = (case["violated"], case["unused"], case["unused_by_binomial"])
    figures = (case["accuracy"], case["cost"], case["offload_rate"])
    return (
        name,
        *("-" if share is None else f"{share:.1%}" for share in shares),
        *("-" if figure is None else f"{figure:.4g}" for figure in figures),
    )


BENCHMARK = harness.Benchmark(
    name="guarantee",
    quick_help=f"{QUICK_RESAMPLINGS} resamplings",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
