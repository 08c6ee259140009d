"""Audits put to the test: false alarms, and instances until a loss of agreement is found.

    python -m benchmarks.bench_audit [--quick]

A staged cascade is fitted on 8,000 rows of Letters (A-M against N-Z). Streams are drawn from
4,000 rows that it has not seen, rows with a local answer that is not the high-cost model's as
often as wanted: at the bound for false alarms, three points above it for a loss. Writes audit.json
and audit.md into benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.data import problems
from gatewise.console import note
from gatewise.costs import request_bytes
from gatewise.decision import exit_stages, labels, probabilities, split
from gatewise_cloud.worker.fleet_audit import DisagreementTest
from gatewise_edge.device.audit import AuditSampler
from gatewise_training import StagedCascade
from gatewise_training.data.datasets import load

SEED, TRAIN, TUNE, POOL = 0, 8000, 4000, 4000
BOUND, LOSS, LEVEL = 0.01, 0.03, 0.05
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
LONGEST = 10_000
WITHIN = 2_000
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
HEADER = ("test", "false alarms", f"found within {WITHIN}", "median", "90 %", "bytes/instance")


@dataclass(frozen=True)
class Pool:
    """Rows of the cascade: whether a stage answers, how sure it is, and whether f0 agrees."""

    local: NDArray[np.bool_]
    confidence: NDArray[np.float64]
    agrees: NDArray[np.bool_]
    request: int

    def stream(self, rng: np.random.Generator, n: int, rate: float) -> NDArray[np.intp]:
        """Draw rows so that a share `rate` is answered differently from the high-cost model."""
        wrong, right = np.flatnonzero(~self.agrees), np.flatnonzero(self.agrees)
        pool_rows = rng.choice(right, n)
        is_wrong = rng.random(n) < rate
        pool_rows[is_wrong] = rng.choice(wrong, int(is_wrong.sum()))
        return pool_rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let each test read streams at the bound and above it."""
    streams = 20 if options.quick else 500
    pool = _pool()
    tests: dict[str, Callable[[np.random.Generator, NDArray[np.intp]], int | None]] = {
        f"audit {share:.0%}": lambda rng, rows, share=share: _audit(pool, share, rng, rows)
        for share in SHARES
    }
    local = float(pool.local.mean())
    figures = {name: _measure(name, pool, test, streams) for name, test in tests.items()}
    for share in SHARES:
        figures[f"audit {share:.0%}"]["bytes"] = share * local * pool.request
    settings = {
        "bound": BOUND,
        "loss": LOSS,
        "level": LEVEL,
        "streams": streams,
        "instances": LONGEST,
        "local": local,
        "seed": SEED,
        "request_bytes": pool.request,
    }
    return {"settings": settings, "tests": figures}


def _pool() -> Pool:
    data = load(problems.data_file("letter"))
    y = (data.y >= 13).astype(int)
    order = np.random.default_rng(SEED).permutation(len(y))
    train, tune, unseen = np.split(order, [TRAIN, TRAIN + TUNE])
    system = StagedCascade(random_state=SEED).fit(
        data.X[train], y[train], validation=(data.X[tune], y[tune])
    )
    x = data.X[unseen[:POOL]]
    margins_and_scores = [split(stage.margins(x), stage.score) for stage in system.stages_]
    exits = exit_stages(
        [score for _, score in margins_and_scores], system.operating_point_.thresholds
    )
    reference = system.high_cost_model_.labels(x)
    answers = np.stack([*(labels(margins) for margins, _ in margins_and_scores), reference])
    n, rows = len(margins_and_scores), np.arange(len(x))
    local = exits < n
    sure = [
        probabilities(margins, stage.link).max(axis=1)
        for (margins, _), stage in zip(margins_and_scores, system.stages_, strict=True)
    ]
    return Pool(
        local=local,
        confidence=np.stack(sure)[np.minimum(exits, n - 1), rows],
        agrees=answers[exits, rows] == answers[-1],
        request=request_bytes(len(system.high_cost_model_.features)),
    )


def _measure(
    name: str,
    pool: Pool,
    test: Callable[[np.random.Generator, NDArray[np.intp]], int | None],
    streams: int,
) -> dict[str, Any]:
    note(f"{name}: {streams} streams")
    rng = np.random.default_rng(SEED)
    alarms = [test(rng, pool.stream(rng, LONGEST, BOUND)) for _ in range(streams)]
    times = [test(rng, pool.stream(rng, LONGEST, BOUND + LOSS)) for _ in range(streams)]
    reached = np.array([LONGEST + 1 if t is None else t for t in times])
    return {
        "false_alarms": sum(t is not None for t in alarms) / streams,
        "found_within": float((reached <= WITHIN).mean()),
        "found": float((reached <= LONGEST).mean()),
        "median": float(np.median(reached)),
        "p90": float(np.quantile(reached, 0.9)),
    }


def _audit(
    pool: Pool, share: float, rng: np.random.Generator, rows: NDArray[np.intp]
) -> int | None:
    """Instances until the alarm of a device that audits a share of its own answers."""
    test, sampler, drawn = DisagreementTest(BOUND, level=LEVEL), AuditSampler(share), rng.random
    skipped = 0
    for number, row in enumerate(rows.tolist(), 1):
        p = 0.0
        if pool.local[row]:
            p = sampler.probability(float(pool.confidence[row]))
        if drawn() >= p:
            skipped += 1
            continue
        test.skip(skipped)
        skipped = 0
        test.audit(disagrees=not pool.agrees[row], probability=p)
        if test.alarm:
            return number
    return None


def _row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    def at(value: float) -> str:
        return f"{value:.0f}" if value <= LONGEST else f"above {LONGEST}"

    return (
        name,
        f"{found['false_alarms']:.1%}",
        f"{found['found_within']:.0%}",
        at(found["median"]),
        at(found["p90"]),
        f"{found['bytes']:.1f}",
    )


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    settings = found["settings"]
    rows = [_row(name, test) for name, test in found["tests"].items()]
    return [
        "# Audits: false alarms, and instances until a loss is found",
        "",
        f"Letters, A-M against N-Z; {settings['streams']} streams of {LONGEST:,} instances each at "
        f"the bound of {BOUND:.0%} (false alarms) and {LOSS:.0%} above it. "
        f"{settings['local']:.0%} of the instances are answered on the device; a request has "
        f"{settings['request_bytes']} bytes. `make bench-audit` makes this page.",
        "",
        *harness.table_lines(HEADER, rows),
    ]


BENCHMARK = harness.Benchmark(
    name="audit",
    description=__doc__,
    quick="20 streams: only a look",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
