from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_training.operating_points.candidate_points import candidates
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points

TIMES = 500

promise = Promise.from_bounds


def record(seed, n, has_cloud=True):
    """Three stages, each surer than the one before, that err where they are unsure."""
    rng = np.random.default_rng(seed)
    hard = rng.exponential(size=n)
    skill = np.array([[0.4], [0.7], [1.0]])
    scores = (skill * rng.gamma(2.0, size=(3, n)) / (0.2 + hard)).astype(np.float32)
    right = rng.random((3, n)) < 1 - 0.5 * np.exp(-scores)
    last = rng.random(n) < 0.99 if has_cloud else right[-1]
    costs = np.array([1.0, 3.0, 6.0, 12.0 if has_cloud else 6.0])
    return CascadeRecord(
        scores, np.vstack([right, last]).astype(float), costs, np.ones(n), has_cloud
    )


def frontier(tuning):
    reference = float(tuning.correct[-1].mean())
    return Frontier.from_points(
        frontier_points(tuning, n_lams=60), reference_accuracy=reference
    ).points


def risk(pool, point, kind):
    if kind == "max_loss":
        return pool.correct[-1].mean() - point.accuracy
    return point.cost if kind == "budget" else point.offload_rate


def resampled(tuning, pool, n, *, certify=certify, **bound):
    """True risks, in the pool, of what is certified on sets of rows drawn from it."""
    (kind,) = bound
    order = candidates(tuning, frontier(tuning), promise(**bound), rows=n)
    order = order[:: 6 if kind == "max_loss" else 2]  # coarser and faster
    rng = np.random.default_rng(0)
    truth = {}
    for _ in range(TIMES):
        rows = pool.rows(rng.integers(0, len(pool.weights), n))
        found = certify(rows, order, promise(**bound))
        if found.thresholds not in truth:
            truth[found.thresholds] = risk(pool, pool.measure(found.thresholds), kind)
        yield truth[found.thresholds]


MOST_VIOLATIONS = 0.05 + 2 * (0.05 * 0.95 / TIMES) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "bound",
    [{"offload_rate": 0.05}, {"offload_rate": 0.2}, {"max_loss": 0.02}, {"budget": 8.0}],
    ids=lambda b: "-".join(map(str, *b.items())),
)
def test_a_guarantee_holds_as_often_as_it_says(bound):
    (limit,) = bound.values()
    risks = np.array(list(resampled(record(0, 1500), record(1, 40_000), 1000, **bound)))
    assert (risks > limit).mean() <= MOST_VIOLATIONS
    assert 0 < 1 - risks.mean() / limit < 0.75  # and it is no empty promise


@pytest.mark.slow
def test_a_certificate_says_what_it_promises_and_how():
    tuning, rows = record(2, 1500), record(3, 1200)
    for bound, method in (
        ({"offload_rate": 0.1}, "exact binomial"),
        ({"max_loss": 0.03}, "exact paired difference"),
        ({"budget": 4.0}, "betting"),
    ):
        order = candidates(tuning, frontier(tuning), promise(**bound), rows=1200)
        found = certify(rows, order, promise(**bound))
        ((kind, limit),) = bound.items()
        assert json.loads(json.dumps(found.guarantee)) == {
            "kind": kind,
            "bound": limit,
            "confidence": 0.95,
            "calibration_rows": 1200,
            "method": method,
        }
        assert msgspec.structs.replace(found, guarantee=None) == rows.measure(found.thresholds)
        assert risk(rows, found, kind) < limit


def test_testing_stops_at_the_first_failure():
    rows = record(4, 1000)
    safe, bold, broken = (rows.measure(t) for t in ((None, 2.0, 1.0), (None, 3.0, 1.5), (9.0,) * 3))
    for order, want in (
        ([safe, bold], bold),
        ([safe, broken, bold], safe),
        ([broken, safe, bold], None),
        ([], None),
    ):
        found = certify(rows, order, promise(offload_rate=bold.offload_rate + 0.05))
        assert (found and found.thresholds) == (want and want.thresholds)
    assert broken.offload_rate > bold.offload_rate + 0.05


def test_what_thresholds_alone_guarantee_needs_no_rows():
    few = record(5, 3)
    tuning = record(6, 500)
    for bound in ({"max_loss": 0.001}, {"offload_rate": 0.01}, {"budget": 1.0}):
        found = certify(
            few, candidates(tuning, frontier(tuning), promise(**bound), rows=3), promise(**bound)
        )
        assert found.guarantee["method"] == "certain"
    assert certify(few, frontier(tuning), promise(budget=0.9)) is None
    # a stage that may say NaN does not always stop
    few.scores[0, 0] = np.nan
    edge_only = few.measure((ALWAYS_STOP, None, None))
    assert certify(few, [edge_only], promise(offload_rate=0.01)) is None


def test_without_a_cloud_the_last_cascade_is_the_reference():
    first, last = record(7, 800, has_cloud=False), record(8, 800, has_cloud=False)
    alike = replace(first, correct=last.correct[[2, 2, 2, 2]])
    same = msgspec.structs.replace(first.measure((ALWAYS_STOP, None, None)), chain=0)
    assert certify([alike, last], [same], promise(max_loss=0.02)).guarantee["method"] != "certain"
    end = msgspec.structs.replace(last.measure((None, None, ALWAYS_STOP)), chain=1)
    assert certify([first, last], [end], promise(max_loss=0.0)).guarantee["method"] == "certain"
    assert (
        certify([first, last], [msgspec.structs.replace(end, chain=0)], promise(max_loss=0.001))
        is None
    )


def test_sorted_files_are_no_trap_for_a_bet():
    """Rows sorted by cost would let a bet win first and never lose again."""
    rows = record(9, 2000)
    point = rows.measure((6.0, 4.0, 1.0))
    by_cost = np.argsort(rows.exit_costs[rows.exits(point.thresholds)], kind="stable")
    bound = point.cost - 0.1  # kept by no means
    assert certify(rows.rows(by_cost), [point], promise(budget=bound)) is None
    assert certify(rows.rows(by_cost[::-1]), [point], promise(budget=point.cost + 1.0)) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one"),
        ({"budget": 1.0, "max_loss": 0.1}, "exactly one"),
        ({"max_loss": 1.5}, "max_loss must be between 0 and 1, not 1.5"),
        ({"offload_rate": -0.1}, "offload_rate must be between 0 and 1"),
        ({"budget": float("nan")}, "budget must be a number of at least 0"),
        ({"budget": 1.0, "confidence": 1.0}, "confidence must be between 0 and 1"),
    ],
)
def test_bad_bounds_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        certify(record(10, 10), [], promise(**settings))


def test_rows_that_cannot_calibrate_are_refused():
    good = record(11, 10)
    with pytest.raises(InputError, match="weight 1"):
        certify(replace(good, weights=np.linspace(0.5, 1.5, 10)), [], promise(budget=1))
    with pytest.raises(InputError, match="same rows"):
        certify([good, record(11, 9)], [], promise(budget=1))
    with pytest.raises(InputError, match="same rows"):
        certify([], [], promise(budget=1))
    with pytest.raises(InputError, match="between 0 and 1"):
        certify(replace(good, correct=good.correct * 2.0), [], promise(max_loss=0.1))
