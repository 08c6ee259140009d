"""Thresholds: exact tuning, figures counted by hand, and the optimism of tuning."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP, midway
from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.packed_size import PackedSizes
from gatewise_training.operating_points.thresholds import (
    CascadeRecord,
    frontier_points,
    smoothed,
    tune,
)


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


def net_accuracy(r, setting, lam):
    point = r.measure(setting)
    return point.accuracy - lam * point.cost


@pytest.mark.parametrize("costs", [lambda r: r, own_costs], ids=["shared costs", "own costs"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ties", [False, True])
def test_one_stage_is_tuned_exactly(seed, ties, costs):
    r = costs(record(seed, stages=1, ties=ties))
    for lam in (0.01, 0.1, 0.5):
        (setting,) = tune(r, np.array([lam]))
        best = max(net_accuracy(r, s, lam) for s in all_settings(r))
        assert net_accuracy(r, setting, lam) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("costs", [lambda r: r, own_costs], ids=["shared costs", "own costs"])
@pytest.mark.parametrize("seed", range(8))
def test_two_stages_cannot_be_bettered_by_one_threshold(seed, costs):
    r = costs(record(seed, n=25))
    lam = 0.05
    (setting,) = tune(r, np.array([lam]), passes=20)
    reached = net_accuracy(r, setting, lam)
    options = list(all_settings(r))
    for s in range(2):
        others = [o for o in options if o[1 - s] == setting[1 - s]]
        assert max(net_accuracy(r, o, lam) for o in others) <= reached + 1e-9
    # and all but never by both together
    assert max(net_accuracy(r, o, lam) for o in options) <= reached + 0.05


def test_sweeps_of_the_price_from_both_ends_nearly_always_find_the_best_setting():
    # a sweep from the highest price alone misses it at 29 of 240 prices, both at 1
    lams = np.geomspace(1, 0.01, 12)
    misses = 0
    for seed in range(20):
        r = record(seed, n=10)
        settings = list(all_settings(r))
        for lam, setting in zip(lams, tune(r, lams), strict=True):
            best = max(net_accuracy(r, s, lam) for s in settings)
            misses += net_accuracy(r, setting, lam) < best - 1e-9
    assert misses <= 2


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


def test_costs_of_each_row_have_no_limits_of_their_own():
    r = own_costs(record(4))
    with pytest.raises(InputError, match="give cost_limits"):
        r.highest_costs()
    limits = np.array([5.0, 9.0, 13.0])
    assert replace(r, cost_limits=limits).highest_costs() is limits
    assert r.lowest_costs().tolist() == [0.0] * 3


# -- figures by hand -----------------------------------------------------------------------


def by_hand(**changes):
    """Four rows that leave a cascade of two stages at 0, 1, 2 and 2 under (1, 5)."""
    r = CascadeRecord(
        scores=np.array([[2.0, 0.0, 0.5, np.nan], [9.0, 5.0, 4.0, np.nan]], np.float32),
        correct=np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 1]], float),
        exit_costs=np.array([1.0, 3.0, 8.0]),
        weights=np.array([1.0, 1.0, 0.5, 1.5]),
        agrees=np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], bool),
        trees=(10, 100),
        nbytes=(7, 70),
        packed=PackedSizes.plain((5, 50)),
    )
    return replace(r, **changes)


def test_a_point_has_the_figures_of_its_rows():
    point = by_hand().measure((1.0, 5.0), chain=3)
    assert point.exit_shares == (0.25, 0.25, 0.5)
    assert point.cost == pytest.approx((1 + 3 + 2 * 8) / 4)
    assert point.accuracy == pytest.approx((1 + 0 + 0 + 1.5) / 4)
    assert point.offload_rate == 0.5
    assert point.agreement == pytest.approx((0 + 0 + 0.5 + 1.5) / 4)
    assert point.trees == pytest.approx((10 + 3 * 110) / 4)
    assert (point.nbytes, point.bytes, point.max_cost, point.chain) == (77, 55, 8.0, 3)
    # gains over the reference: 1, -1, 0, 0, of mean 0
    assert point.accuracy_error == pytest.approx(((1 + 1) / 4 / 4) ** 0.5)
    assert (point.weighted_accuracy, point.recall, point.validation_groups) == (None, None, None)


def test_stages_that_never_stop_have_no_part_in_the_figures():
    point = by_hand().measure((None, 5.0))
    assert point.exit_shares == (0.0, 0.5, 0.5)
    assert (point.trees, point.nbytes, point.bytes) == (100.0, 70, 50)
    cloud_only = by_hand().measure((None, None))
    assert (cloud_only.trees, cloud_only.nbytes, cloud_only.bytes) == (0.0, 0, 5)  # the smallest
    bare = by_hand(trees=(), nbytes=(), packed=None, agrees=None).measure((1.0, None))
    assert (bare.trees, bare.nbytes, bare.bytes, bare.agreement) == (0.0, 0, 0, None)
    # rows with NaN pass a stage that always stops
    assert by_hand().measure((ALWAYS_STOP, None)).max_cost == 8.0
    assert by_hand(scores=np.ones((2, 4), np.float32)).measure((ALWAYS_STOP, None)).max_cost == 1.0


def test_limits_of_costs_are_those_that_are_known():
    own = np.repeat([[1.0], [3.0], [8.0]], 4, axis=1)
    assert by_hand(exit_costs=own).measure((1.0, 5.0)).max_cost is None
    limits = np.array([2.0, 4.0, 9.0])
    assert by_hand(exit_costs=own, cost_limits=limits).measure((1.0, 5.0)).max_cost == 9.0
    assert by_hand(cost_limits=limits).within_cost(9.0).offloads
    assert not by_hand(cost_limits=limits).within_cost(8.99).offloads
    same = by_hand()
    assert same.within_cost(8.0) is same
    assert same.within_cost(None) is same
    assert same.within_cost(1.0).within_cost(None).offloads


def test_class_weights_count_in_right_answers_alone():
    r = by_hand(
        class_weights=np.array([3.0, 1.0, 1.0, 1.0]),
        answers=ExitAnswers(np.array([0, 1, 1, 1]), np.array([[0, 1, 1, 0]] * 3), 2),
    )
    assert r.scaled_class_weights == pytest.approx(np.array([3, 1, 1, 1]) / 1.5)
    assert r.reference_accuracy() == pytest.approx((1 + 1.5) / 6)
    point = r.measure((1.0, 5.0))
    plain = by_hand().measure((1.0, 5.0))
    assert point.weighted_accuracy == pytest.approx((3 + 1.5) / 6)
    assert (point.cost, point.accuracy, point.offload_rate) == (
        plain.cost, plain.accuracy, plain.offload_rate
    )  # fmt: skip
    assert point.recall == (1.0, 0.5)
    # gains 1, -1, 0, 0 of weighted mean (3 - 1) / 6
    deviations = np.array([2.0, 2 / 3, 2 / 3, 2 / 3]) * (np.array([1, -1, 0, 0]) - 1 / 3)
    error = (np.average(deviations**2, weights=r.weights) / 4) ** 0.5
    assert point.accuracy_error == pytest.approx(error)


def test_errors_between_groups_are_never_below_those_of_rows():
    r = record(2, n=40)
    plain = r.measure((0.0, None)).accuracy_error
    # groups that agree by chance; and groups of rows that gain or lose together
    alike = replace(r, given_splitter=RowSplitter(40, np.arange(40) % 2))
    gain = r.correct[r.exits((0.0, None)), np.arange(40)] - r.correct[-1]
    with_groups = replace(r, given_splitter=RowSplitter(40, gain.astype(np.int64)))
    assert alike.measure((0.0, None)).accuracy_error >= plain
    assert with_groups.measure((0.0, None)).accuracy_error > 2 * plain
    assert (r.n_independent, alike.n_independent) == (40, 2)
    assert alike.measure((0.0, None)).validation_groups == 2


def test_some_rows_of_a_record_have_all_their_figures():
    r = by_hand(class_weights=np.array([3.0, 1.0, 1.0, 1.0]))
    part = r.rows(np.array([0, 3]))
    assert part.weights == pytest.approx([0.8, 1.2])
    assert part.class_weights.tolist() == [3.0, 1.0]
    assert part.agrees.tolist() == [[False, False], [False, True], [True, True]]
    assert part.exit_costs.tolist() == [1.0, 3.0, 8.0]


# -- tuning --------------------------------------------------------------------------------


def test_rows_go_on_where_stopping_gains_nothing():
    """Right at both exits for the same price: the stage gains nothing by stopping."""
    r = CascadeRecord(
        scores=np.array([[1.0, 2.0]], np.float32),
        correct=np.ones((2, 2)),
        exit_costs=np.array([1.0, 1.0]),
        weights=np.ones(2),
    )
    assert tune(r, np.array([0.1])) == [(None,)]
    costlier = replace(r, exit_costs=np.array([1.0, 1.5]))
    assert tune(costlier, np.array([0.1])) == [(ALWAYS_STOP,)]


def test_rows_of_one_score_stop_together_also_at_the_end():
    """It would pay to stop the first of the two rows with the lowest score alone."""
    r = CascadeRecord(
        scores=np.array([[2.0, 1.0, 1.0]], np.float32),
        correct=np.array([[1, 1, 0], [1, 0, 1]], float),
        exit_costs=np.array([1.0, 2.0]),
        weights=np.ones(3),
    )
    assert tune(r, np.array([0.01])) == [(ALWAYS_STOP,)]
    assert tune(replace(r, correct=r.correct * [1, 1, 3]), np.array([0.01])) == [(1.5,)]


def test_prices_come_in_any_order_and_go_out_from_the_highest():
    r = record(1, n=60, stages=2)
    assert tune(r, np.array([0.01, 1.0, 0.1])) == tune(r, np.array([1.0, 0.1, 0.01]))


def test_a_stage_that_may_not_offload_stops_all_rows():
    r = record(3).within_cost(0.0)
    points = frontier_points(r)
    assert {p.offload_rate for p in points} == {0.0}
    assert {p.thresholds[-1] for p in points} <= {ALWAYS_STOP, None}
    assert (None, None) not in {p.thresholds for p in points}


def test_smoothed_answers_are_frequencies_that_rise_with_the_score():
    r = by_hand(
        scores=np.array([[1.0, 2.0, 3.0, np.nan]] * 2, np.float32),
        correct=np.array([[1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]], float),
    )
    frequencies = smoothed(r).correct
    assert frequencies[0].tolist() == [0.5, 0.5, 1.0, 0.0]  # two rows of weight 1 are pooled
    assert frequencies[1].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert frequencies[2].tolist() == [0, 1, 0, 1]
    nothing = replace(r, scores=np.full((2, 4), np.nan, np.float32))
    assert np.array_equal(smoothed(nothing).correct, nothing.correct)


def test_tuned_points_lose_the_optimism_that_unseen_fifths_show():
    r = record(6, n=90)
    prices = np.geomspace(3.0, 3e-3, 12) / r.exit_costs.max()
    settings = tune(smoothed(r), prices)
    fitted = np.array([0, 5, 10, 11])  # one price in five, and the last
    gaps = np.zeros((2, 4))
    for fit_rows, unseen_rows in r.splitter.folds(None, 5, 0):
        fit, unseen = r.rows(fit_rows), r.rows(unseen_rows)
        for i, setting in enumerate(tune(smoothed(fit), prices[fitted])):
            gaps[0, i] += (unseen.measure(setting).cost - fit.measure(setting).cost) / 5
            gaps[1, i] += (fit.measure(setting).accuracy - unseen.measure(setting).accuracy) / 5
    extra_cost, lost = (np.maximum(np.interp(np.arange(12), fitted, gap), 0) for gap in gaps)
    points = frontier_points(r, n_lams=12, n_cuts=2, chain=4)
    assert {p.chain for p in points} == {4}
    first_price = {}
    for i, setting in enumerate(settings):
        first_price.setdefault(setting, i)
    assert len(first_price) > 3
    for point, (setting, i) in zip(points, first_price.items(), strict=False):
        measured = r.measure(setting)
        assert point.thresholds == setting
        assert point.cost == pytest.approx(measured.cost + extra_cost[i])
        assert point.accuracy == pytest.approx(measured.accuracy - lost[i])


def test_thresholds_that_are_tried_alone_leave_twenty_rows_to_each():
    for n, n_thresholds in ((39, 2), (60, 3), (1000, 5)):
        r = record(2, n=n, stages=1)
        alone = [p.thresholds[0] for p in frontier_points(r, n_cuts=5)]
        cuts = [t for t in alone if t not in (None, ALWAYS_STOP)]
        assert len(cuts) == n_thresholds
        distinct = np.unique(r.scores[0])
        assert min(cuts) == midway(float(distinct[0]), float(distinct[1]))
        assert max(cuts) == midway(float(distinct[-2]), float(distinct[-1]))
    same = replace(record(2, n=60, stages=1), scores=np.ones((1, 60), np.float32))
    assert {p.thresholds for p in frontier_points(same)} == {(ALWAYS_STOP,), (None,)}
    two = replace(same, scores=(np.arange(60) % 2)[np.newaxis].astype(np.float32))
    assert {p.thresholds for p in frontier_points(two)} == {(ALWAYS_STOP,), (0.5,), (None,)}
    assert {p.chain for p in frontier_points(two)} == {0}


def test_other_weights_of_classes_find_other_settings_measured_without_them():
    r = record(4, n=200)
    answers = ExitAnswers(np.arange(200) % 2, np.zeros((3, 200), np.int64), 2)
    r = replace(r, answers=answers)
    plain = frontier_points(r, n_lams=10, n_cuts=2)
    further = frontier_points(r, n_lams=10, n_cuts=2, emphases=[np.array([0.1, 5.0])])
    assert len(further) > len(plain)
    for point in further:
        assert point.weighted_accuracy is None
        assert point.recall == r.measure(point.thresholds).recall
