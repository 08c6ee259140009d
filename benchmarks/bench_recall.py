"""Recall of a rare class: its loss without a bound, and how often a bound is kept at which cost.

    python -m benchmarks.bench_recall [--quick]

Two in a hundred rows are faults. A staged cascade is fitted on 10,000 rows, plain and with balanced
class weights. Ten times thresholds are tuned on rows drawn from 20,000 others, and each time rows
to certify on and test rows are drawn again and again, with replacement, from the 60,000 left. An
operating point is picked without a bound on recall, with one, and with a guaranteed one; recall
and cost are measured on the test rows.
Writes recall.json and recall.md into benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks import harness
from benchmarks.data.cascade_records import cascade_record
from gatewise.console import note
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training import StagedCascade
from gatewise_training.operating_points.candidate_points import candidates
from gatewise_training.operating_points.class_figures import ClassBounds, emphases
from gatewise_training.operating_points.frontier import SLACK, Frontier
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points

FIT, TUNE, POOL = 10_000, 20_000, 60_000
TUNED_ON, CERTIFIED_ON, TESTED_ON = 5000, 10_000, 40_000
"""Rows drawn each time."""
TUNINGS, RESAMPLINGS, QUICK_RESAMPLINGS = 10, 500, 10
CONFIDENCE, SEED, PRICES = 0.95, 0, 40
FAULT = 1
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm")
Case = tuple[Literal["balanced"] | None, float, float]
CASES: tuple[Case, ...] = ((None, 0.01, 0.75), ("balanced", 0.03, 0.88))
"""Class weights, largest loss (with them: of weighted accuracy), and least recall of a fault."""
HEADER = (
    "class weights",
    "least recall",
    "chosen",
    "picked",
    "kept on test rows",
    "kept in truth",
    "recall of faults",
    "lowest tenth",
    "precision",
    "accuracy",
    "cost",
    "offloaded",
)
WAYS = ("no bound", "min_recall", "min_recall, guarantee")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tune, certify and test each case again and again."""
    resamplings = QUICK_RESAMPLINGS if options.quick else RESAMPLINGS
    x, y = rare_faults()
    cases = []
    for case in CASES:
        cases.append(_case(x, y, case, resamplings))
        note(f"{case[0] or 'no'} weights: {cases[-1]['seconds']} s")
    settings = {
        "fault_share": float(y.mean()),
        "rows": {"fit": FIT, "tune": TUNED_ON, "certify": CERTIFIED_ON, "test": TESTED_ON},
        "tunings": TUNINGS,
        "resamplings": resamplings,
        "confidence": CONFIDENCE,
        "seed": SEED,
    }
    return {"settings": settings, "cases": cases}


def rare_faults() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Make rows of which 2 in 100 are faults, hidden in several clusters."""
    x, y = make_classification(
        FIT + TUNE + POOL,
        16,
        n_informative=8,
        n_redundant=2,
        n_clusters_per_class=2,
        weights=[0.98],
        class_sep=1.5,
        flip_y=0.002,
        random_state=SEED,
    )
    return x.astype(np.float32), y.astype(np.int64)


def _case(
    x: NDArray[np.float32], y: NDArray[np.int64], case: Case, resamplings: int
) -> dict[str, Any]:
    weight, loss, min_recall = case
    started = time.perf_counter()
    # the system, and its answers on rows for tuning and on the pool
    fit, tune, pool_rows = (
        slice(a, b) for a, b in pairwise((0, FIT, FIT + TUNE, FIT + TUNE + POOL))
    )
    system = StagedCascade(
        HistGradientBoostingClassifier(random_state=SEED),
        n_stages=4,
        families=("linear", "boosting"),
        effort="low",
        class_weight=weight,
        min_recall={FAULT: 0.01},
        random_state=SEED,
    )
    system.fit(x[fit], y[fit])
    of_tuning, pool = (
        [cascade_record(system, c, x[part], y[part]) for c in range(len(system.chains_))]
        for part in (tune, pool_rows)
    )
    # three ways to choose a point, on rows drawn for each
    bounds = ClassBounds.from_mappings((0, 1), {FAULT: min_recall})
    promise = Promise.from_bounds(CONFIDENCE, by_class=bounds, max_loss=loss)
    rng = np.random.default_rng(SEED)
    picks: dict[str, list[OperatingPoint | None]] = {method: [] for method in WAYS}
    truth: dict[str, int] = dict.fromkeys(WAYS, 0)
    for _ in range(TUNINGS):
        tuning_rows = rng.integers(0, TUNE, TUNED_ON)
        tuning = [record.rows(tuning_rows) for record in of_tuning]
        curve = _frontier(tuning, bounds)
        free = curve.choose(None, slack=SLACK, max_loss=loss).point
        try:
            bounded_point = curve.choose(bounds, slack=SLACK, max_loss=loss).point
        except InputError:
            bounded_point = None
        order = candidates(tuning, (*curve.points, *curve.others), promise, rows=CERTIFIED_ON)
        for _ in range(resamplings // TUNINGS):
            certifying, testing = (
                [record.rows(rows) for record in pool]
                for rows in (rng.integers(0, POOL, n) for n in (CERTIFIED_ON, TESTED_ON))
            )
            for method, point in zip(
                WAYS, (free, bounded_point, certify(certifying, order, promise)), strict=True
            ):
                if point is None:
                    picks[method].append(None)
                    continue
                picks[method].append(testing[point.chain].measure(point.thresholds, point.chain))
                whole = pool[point.chain].measure(point.thresholds, point.chain)
                truth[method] += (
                    whole.recall is not None and (whole.recall[FAULT] or 0.0) >= min_recall
                )
    # the high-cost model alone, and how often each way kept the bound
    reference = pool[-1]
    assert reference.answers is not None
    cloud = reference.answers.figures(np.full(POOL, reference.n_stages), reference.weights)
    return {
        "class_weight": weight,
        "max_loss": loss,
        "min_recall": min_recall,
        "cloud_recall": cloud["recall"][FAULT],
        "ways": {
            method: _summary(points, min_recall) | {"kept_in_truth": truth[method]}
            for method, points in picks.items()
        },
        "seconds": round(time.perf_counter() - started, 1),
    }


def _frontier(tuning: Sequence[CascadeRecord], bounds: ClassBounds) -> Frontier:
    """Frontier of the cascades on rows drawn, as a fit with the bounds makes it."""
    reference = tuning[-1]
    assert reference.answers is not None
    rows = reference.answers.class_rows()
    further = emphases(np.array(rows) / sum(rows), bounds)
    points = [
        point
        for chain, record in enumerate(tuning)
        for point in frontier_points(
            record, chain=chain, n_lams=PRICES, seed=SEED, emphases=further
        )
    ]
    curve = Frontier.from_points(
        points,
        reference_accuracy=float(reference.correct[-1].mean()),
        reference_weighted_accuracy=None if reference.class_weights is None else reference.merit(),
        classes=(0, 1),
        class_rows=rows,
    )
    return curve.with_others(points, bounds)


def _summary(points: Sequence[OperatingPoint | None], least: float) -> dict[str, Any]:
    picked = [p for p in points if p is not None]
    recalls = np.array([p.recall[FAULT] or 0.0 for p in picked if p.recall is not None])
    if not picked:
        return {"picked": 0}
    return {
        "picked": len(picked),
        "kept": int((recalls >= least).sum()),
        "recall": float(recalls.mean()),
        "recall_lowest_tenth": float(np.quantile(recalls, 0.1)),
        "precision": float(np.mean([p.precision[FAULT] or 0.0 for p in picked if p.precision])),
        **{
            name: float(np.mean([getattr(p, name) for p in picked]))
            for name in ("accuracy", "cost", "offload_rate")
        },
    }


def _rows(case: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for method, found in case["ways"].items():
        figures = ("-",) * 8
        if found["picked"]:
            figures = (
                f"{found['kept'] / found['picked']:.1%}",
                f"{found['kept_in_truth'] / found['picked']:.1%}",
                f"{found['recall']:.3f}",
                f"{found['recall_lowest_tenth']:.3f}",
                f"{found['precision']:.3f}",
                f"{found['accuracy']:.4f}",
                f"{found['cost']:.2f}",
                f"{found['offload_rate']:.3f}",
            )
        weights, min_recall = case["class_weight"] or "none", f"{case['min_recall']:g}"
        rows.append((weights, min_recall, method, str(found["picked"]), *figures))
    return rows


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    rows = [row for case in found["cases"] for row in _rows(case)]
    settings = found["settings"]
    clouds = "; ".join(
        f"{case['class_weight'] or 'no'} class weights: {case['cloud_recall']:.3f}"
        for case in found["cases"]
    )
    return [
        "# Recall of a rare class",
        "",
        f"{settings['fault_share']:.1%} of the rows are faults (synthetic, 16 features of price "
        f"1). {TUNINGS} times {TUNED_ON:,} rows to tune on are drawn, and each time "
        f"{settings['resamplings'] // TUNINGS} times {CERTIFIED_ON:,} to certify on and "
        f"{TESTED_ON:,} test rows. Picked is the cheapest point within "
        f"{CASES[0][1]:g} of the high-cost model's accuracy, with balanced class weights within "
        f"{CASES[1][1]:g} of its weighted accuracy: without a bound, with `min_recall`, and with "
        f"`min_recall` and `guarantee={CONFIDENCE:g}`, which certifies both. The high-cost model "
        f"alone costs 16; its recall of faults, {clouds}. Kept in truth: on all {POOL:,} rows that "
        "both are drawn from. Where fewer than all are picked, the others are refused: no point "
        "could be certified. All other figures are means on test rows. "
        "`make bench-recall` makes this page.",
        "",
        *harness.table_lines(HEADER, rows),
    ]


BENCHMARK = harness.Benchmark(
    name="recall",
    description=__doc__,
    quick=f"{QUICK_RESAMPLINGS} resamplings: only a look",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
