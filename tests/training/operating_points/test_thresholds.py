from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP, midway
from gatewise.errors import InputError
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points, tune


def record(seed, n=40, stages=2, ties=False):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(stages, n)).astype(np.float32)
    if ties:
        scores = np.round(scores * 2) / 2
    chance = 1 / (1 + np.exp(-2 * scores))
    correct = (rng.random((stages, n)) < chance).astype(float)
    correct = np.vstack([correct, rng.random(n) < 0.95])
    costs = np.cumsum(rng.uniform(0.5, 3, stages + 1))
    return CascadeRecord(scores, correct, costs, rng.uniform(0.5, 1.5, n))


def own_costs(r, seed=0):
    """The same record with costs that differ from row to row and grow over the exits."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([0.0, 0.5, 1.0, 4.0], (len(r.correct), len(r.weights)))
    return replace(r, exit_costs=np.cumsum(steps, axis=0))


def all_settings(r):
    options = []
    for row in r.scores:
        cuts = np.unique(row)
        options.append(
            [None, ALWAYS_STOP] + [midway(float(a), float(b)) for a, b in pairwise(cuts)]
        )
    return product(*options)


def worth(r, setting, lam):
    point = r.measure(setting)
    return point.accuracy - lam * point.cost


@pytest.mark.parametrize("costs", [lambda r: r, own_costs], ids=["shared costs", "own costs"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ties", [False, True])
def test_one_stage_is_tuned_exactly(seed, ties, costs):
    r = costs(record(seed, stages=1, ties=ties))
    for lam in (0.01, 0.1, 0.5):
        (setting,) = tune(r, np.array([lam]))
        best = max(worth(r, s, lam) for s in all_settings(r))
        assert worth(r, setting, lam) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("costs", [lambda r: r, own_costs], ids=["shared costs", "own costs"])
@pytest.mark.parametrize("seed", range(8))
def test_two_stages_cannot_be_bettered_by_one_threshold(seed, costs):
    r = costs(record(seed, n=25))
    lam = 0.05
    (setting,) = tune(r, np.array([lam]), passes=20)
    reached = worth(r, setting, lam)
    options = list(all_settings(r))
    for s in range(2):
        others = [o for o in options if o[1 - s] == setting[1 - s]]
        assert max(worth(r, o, lam) for o in others) <= reached + 1e-9
    # and all but never by both together
    assert max(worth(r, o, lam) for o in options) <= reached + 0.05


def test_measured_figures_are_counted_one_by_one():
    r = record(3)
    point = r.measure((0.3, None))
    exits = [0 if a >= np.float32(0.3) else 2 for a in r.scores[0]]
    total = r.weights.sum()
    cost = sum(w * r.exit_costs[e] for w, e in zip(r.weights, exits, strict=True)) / total
    right = sum(w * r.correct[e, i] for i, (w, e) in enumerate(zip(r.weights, exits, strict=True)))
    assert point.cost == pytest.approx(cost)
    assert point.accuracy == pytest.approx(right / total)
    sent = sum(w for w, e in zip(r.weights, exits, strict=True) if e == 2) / total
    assert point.offload_rate == pytest.approx(sent)


def test_the_pool_holds_the_simple_points():
    r = record(5, stages=3)
    settings = {p.thresholds for p in frontier_points(r)}
    assert (None, None, None) in settings
    for s in range(3):
        alone = [None] * 3
        alone[s] = ALWAYS_STOP
        assert tuple(alone) in settings


def test_nan_scores_go_on_and_never_set_a_threshold():
    r = record(7, stages=1)
    r.scores[0, :10] = np.nan
    settings = tune(r, np.geomspace(1e-3, 10, 20))
    assert any(threshold is not None for (threshold,) in settings)
    for setting in settings:
        assert setting[0] is None or np.isfinite(setting[0])
        assert r.measure(setting).offload_rate >= r.weights[:10].sum() / r.weights.sum() - 1e-12


def test_without_a_cloud_the_last_stage_always_answers():
    base = record(9)
    r = CascadeRecord(base.scores, base.correct, base.exit_costs, base.weights, has_cloud=False)
    assert {setting[-1] for setting in tune(r, np.geomspace(1e-3, 1, 10))} == {ALWAYS_STOP}


# -- costs of each row ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_equal_costs_of_each_row_change_nothing(seed):
    r = record(seed, n=120, stages=3)
    own = np.repeat(r.exit_costs[:, None], 120, axis=1)
    spelt = replace(r, exit_costs=own, cost_limits=r.exit_costs)
    lams = np.geomspace(1e-3, 1, 12)
    assert tune(spelt, lams) == tune(r, lams)
    for one, other in zip(frontier_points(spelt), frontier_points(r), strict=True):
        assert one.thresholds == other.thresholds
        assert one.cost == pytest.approx(other.cost, rel=1e-12)
        assert msgspec.structs.replace(one, cost=0.0) == msgspec.structs.replace(other, cost=0.0)


def test_costs_of_each_row_are_counted_one_by_one():
    r = own_costs(record(3))
    point = r.measure((0.3, None))
    bills = [
        w * r.exit_costs[0 if a >= np.float32(0.3) else 2, i]
        for i, (a, w) in enumerate(zip(r.scores[0], r.weights, strict=True))
    ]
    assert point.cost == pytest.approx(sum(bills) / r.weights.sum())
    some = np.arange(0, 40, 3)
    part = r.rows(some).measure((0.3, None))
    assert part.cost == pytest.approx(sum(bills[i] for i in some) / r.weights[some].sum())


def test_costs_of_each_row_have_no_limits_of_their_own():
    r = own_costs(record(4))
    with pytest.raises(InputError, match="give cost_limits"):
        r.highest_costs()
    limits = np.array([5.0, 9.0, 13.0])
    assert replace(r, cost_limits=limits).highest_costs() is limits
    assert r.lowest_costs().tolist() == [0.0] * 3
