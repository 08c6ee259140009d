"""Guarantees put to the test: how often they are broken, and how much they leave unused.

    python -m benchmarks.bench_guarantee [--quick]

A staged cascade is fitted and tuned on 12,000 rows of Letters. From the other 8,000, the pool,
calibration sets are drawn again and again with replacement, and each certifies an operating
point; its true risk is the pool's. Beside what is left unused stands the binomial's own floor:
what the best test of a plain rate with the same bound and rows would leave unused. Writes
guarantee.json into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import harness
from gatewise.console import note, table
from gatewise.decision import labels, split
from gatewise.errors import GatewiseError
from gatewise_training import StagedCascade
from gatewise_training.data.datasets import Dataset, load
from gatewise_training.operating_points.candidate_points import candidates
from gatewise_training.operating_points.guarantee import Loss, Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord

HERE = Path(__file__).parent
DATA = Path(os.environ.get("GATEWISE_DATA", HERE.parents[1] / "shared" / "data")) / "letter.npz"
TRAIN, TUNE = 8000, 4000
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm")
Case = tuple[str, float, Loss]
CASES: tuple[Case, ...] = (
    *(("offload_rate", rate, "difference") for rate in (0.05, 0.1, 0.2, 0.3, 0.5)),
    *(("max_loss", bound, "difference") for bound in (0.01, 0.02)),
    *(("max_loss", bound, "regret") for bound in (0.01, 0.02)),
    *(("budget", bound, "difference") for bound in (6.0, 8.0)),
)
HEADER = ("guarantee", "violated", "unused", "binomial", "accuracy", "cost", "offload rate")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench_guarantee", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="letter.npz")
    parser.add_argument("--resamplings", type=int, default=500)
    parser.add_argument("--rows", type=int, default=4000, help="calibration rows")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="50 resamplings, nothing written")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "guarantee.json")
    options = parser.parse_args(arguments)
    if options.quick:
        options.resamplings = 50
    try:
        data = load(options.data)
    except GatewiseError as error:
        note(str(error))
        return 2
    found: dict[str, Any] = {
        "settings": {
            "data": options.data.name,
            "train": TRAIN,
            "tune": TUNE,
            "pool": len(data.y) - TRAIN - TUNE,
            "calibration_rows": options.rows,
            "resamplings": options.resamplings,
            "confidence": options.confidence,
            "seed": options.seed,
        },
        **harness.environment(PACKAGES),
        "systems": {},
    }
    for name, y in (("Letters, A-M against N-Z", data.y >= 13), ("Letters, 26 classes", data.y)):
        found["systems"][name] = _system(data, y.astype(int), options)
        _show(name, found["systems"][name])
    if not options.quick:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        note(f"wrote {options.out}")
    return 0


def _system(data: Dataset, y: NDArray[Any], options: argparse.Namespace) -> dict[str, Any]:
    rows = np.random.default_rng(options.seed).permutation(len(y))
    train, tune, pool = np.split(rows, [TRAIN, TRAIN + TUNE])
    started = time.perf_counter()
    system = StagedCascade(random_state=options.seed).fit(
        data.X[train], y[train], validation=(data.X[tune], y[tune])
    )
    seconds = time.perf_counter() - started
    tuning = [_record(system, c, data.X[tune], y[tune]) for c in range(len(system.chains_))]
    truth = [_record(system, c, data.X[pool], y[pool]) for c in range(len(system.chains_))]
    return {
        "stages": [len(chain) for chain in system.chains_],
        "fit_seconds": round(seconds, 1),
        "cloud_accuracy": float(truth[0].correct[-1].mean()),
        "cases": [_case(tuning, truth, system.frontier_.points, case, options) for case in CASES],
    }


def _record(system: Any, chain: int, x: NDArray[np.float32], y: NDArray[np.int64]) -> CascadeRecord:
    """Record what one candidate of a fitted cascade does on rows that it was not fitted on."""
    stages, f0, prices = system.chains_[chain], system.high_cost_model_, system.feature_costs_
    parts = [split(stage.margins(x), stage.score) for stage in stages]
    answers = [*(labels(margins) for margins, _ in parts), f0.labels(x)]
    bought, costs = np.zeros(prices.n_features, bool), []
    for features in (*(stage.features for stage in stages), f0.features):
        bought = bought | prices.mask(features)
        costs.append(prices.price(bought))
    return CascadeRecord(
        scores=np.stack([score for _, score in parts]),
        correct=np.stack([system.classes_[said] == y for said in answers]).astype(np.float64),
        exit_costs=np.array(costs),
        weights=np.ones(len(y)),
    )


def _case(
    tuning: Sequence[CascadeRecord],
    pool: Sequence[CascadeRecord],
    points: Sequence[Any],
    case: Case,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Certify on many calibration sets; compare what was promised with the truth."""
    kind, bound, loss = case
    promise = Promise.from_bounds(options.confidence, **{kind: bound})
    started = time.perf_counter()
    order = candidates(tuning, points, promise, rows=options.rows)
    laid_out = time.perf_counter() - started
    rng = np.random.default_rng(options.seed)
    reference = float(pool[-1].correct[-1].mean())
    truth: dict[Any, Any] = {}
    true, methods = [], []
    started = time.perf_counter()
    for _ in range(options.resamplings):
        drawn = rng.integers(0, len(pool[0].weights), options.rows)
        point = certify([p.rows(drawn) for p in pool], order, promise, loss=loss)
        if point is None:
            methods.append("none")
            continue
        key = point.chain, point.thresholds
        if key not in truth:
            truth[key] = pool[point.chain].measure(point.thresholds, point.chain)
        true.append(truth[key])
        assert point.guarantee is not None
        methods.append(point.guarantee["method"])
    seconds = (time.perf_counter() - started) / options.resamplings
    if loss == "regret":
        risks = np.array([_regret(pool[p.chain], p.thresholds) for p in true])
    else:
        risks = np.array([_risk(point, kind, reference) for point in true])
    return {
        "kind": kind,
        "bound": bound,
        "loss": loss if kind == "max_loss" else None,
        "candidates": len(order),
        "certified": len(true),
        "violated": int((risks > bound + 1e-12).sum()) / options.resamplings,
        "violated_at_most": _allowed(options.confidence, options.resamplings),
        "unused": 1 - float(risks.mean()) / bound if true else None,
        "unused_by_binomial": _floor(kind, bound, options),
        "accuracy": _mean(p.accuracy for p in true),
        "cost": _mean(p.cost for p in true),
        "offload_rate": _mean(p.offload_rate for p in true),
        "methods": {m: methods.count(m) for m in sorted(set(methods))},
        "seconds": {"candidates": round(laid_out, 3), "certify": round(seconds, 4)},
    }


def _mean(figures: Iterable[float]) -> float | None:
    values = list(figures)
    return sum(values) / len(values) if values else None


def _risk(point: Any, kind: str, reference: float) -> float:
    if kind == "max_loss":
        return reference - float(point.accuracy)
    return float(point.cost if kind == "budget" else point.offload_rate)


def _regret(pool: CascadeRecord, thresholds: Sequence[float | None]) -> float:
    right = pool.correct[pool.exits(thresholds), np.arange(len(pool.weights))]
    return float((right < pool.correct[-1]).mean())


def _allowed(confidence: float, resamplings: int) -> float:
    """Violations that chance explains: the promise and two standard errors."""
    level = 1 - confidence
    return level + 2 * math.sqrt(level * confidence / resamplings)


def _floor(kind: str, bound: float, options: argparse.Namespace) -> float | None:
    """What the exact binomial test leaves unused at the best: its largest count against the bound.

    For a budget there is none: a cost is no rate.
    """
    if kind == "budget":
        return None
    rows = int(options.rows)
    most = float(stats.binom.ppf(1 - options.confidence, rows, bound)) - 1
    return 1.0 - most / (rows * bound)


def _show(name: str, found: dict[str, Any]) -> None:
    rows = []
    for case in found["cases"]:
        what = f"{case['kind']} {case['bound']:g}" + " (regret)" * (case["loss"] == "regret")
        shares = (case["violated"], case["unused"], case["unused_by_binomial"])
        figures = (case["accuracy"], case["cost"], case["offload_rate"])
        rows.append(
            (
                what,
                *("-" if share is None else f"{share:.1%}" for share in shares),
                *("-" if figure is None else f"{figure:.4g}" for figure in figures),
            )
        )
    most = found["cases"][0]["violated_at_most"]
    table(f"{name} (violated: at most {most:.1%})", HEADER, rows)


if __name__ == "__main__":
    sys.exit(main())
