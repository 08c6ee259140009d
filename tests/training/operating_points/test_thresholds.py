"""Test the tuning of thresholds, the figures of operating points and the optimism of tuning.

A setting is a tuple of one threshold for each stage, and `lam` the price of a unit of cost in
accuracy. Tuning maximises the net accuracy, which is the accuracy less `lam` times the cost.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import msgspec
import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP, midpoint_threshold
from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.packed_size import PackedSizes
from gatewise_training.operating_points.thresholds import (
    frontier_points,
    space_prices,
    tune_thresholds,
    with_smoothed_answers,
)


def draw_record(seed, n=40, n_stages=2, has_ties=False):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_stages, n)).astype(np.float32)
    if has_ties:
        scores = np.round(scores * 2) / 2
    right_probability = 1 / (1 + np.exp(-2 * scores))
    correctness = (rng.random((n_stages, n)) < right_probability).astype(float)
    correctness = np.vstack([correctness, rng.random(n) < 0.95])
    costs = np.cumsum(rng.uniform(0.5, 3, n_stages + 1))
    return CascadeRecord(scores, correctness, costs, rng.uniform(0.5, 1.5, n), RowSplitter(n))


def draw_costs_per_row(record, seed=0):
    """Draw costs per row that grow over the exits; return a record with them."""
    rng = np.random.default_rng(seed)
    increments = rng.choice([0.0, 0.5, 1.0, 4.0], (len(record.correctness), len(record.weights)))
    return replace(record, exit_costs=np.cumsum(increments, axis=0))


def draw_class_weights(record, seed=0):
    """Draw two classes; the first one weighs six times as much."""
    is_first = np.random.default_rng(seed).random(len(record.weights)) < 0.2
    return replace(record, class_weights=np.where(is_first, 6.0, 1.0))


def list_settings(record):
    """List all combinations of thresholds that differ on the rows."""
    options_by_stage = []
    for stage_scores in record.scores:
        distinct_scores = np.unique(stage_scores)
        options_by_stage.append(
            [None, ALWAYS_STOP]
            + [
                midpoint_threshold(float(low), float(high))
                for low, high in pairwise(distinct_scores)
            ]
        )
    return product(*options_by_stage)


def compute_net_accuracy(record, setting, lam):
    point = record.measure(setting)
    assert record.class_weights is None or point.weighted_accuracy == point.effective_accuracy
    return point.effective_accuracy - lam * point.cost


RECORD_CHANGES = pytest.mark.parametrize(
    "change_record",
    [lambda record: record, draw_costs_per_row, draw_class_weights],
    ids=["shared costs", "costs per row", "class weights"],
)


@RECORD_CHANGES
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("has_ties", [False, True])
def test_one_stage_is_tuned_exactly(seed, has_ties, change_record):
    record = change_record(draw_record(seed, n_stages=1, has_ties=has_ties))
    for lam in (0.01, 0.1, 0.5):
        (setting,) = tune_thresholds(record, np.array([lam]))
        best_accuracy = max(
            compute_net_accuracy(record, other_setting, lam)
            for other_setting in list_settings(record)
        )
        assert compute_net_accuracy(record, setting, lam) == pytest.approx(best_accuracy, abs=1e-12)


@pytest.mark.slow
@RECORD_CHANGES
@pytest.mark.parametrize("seed", range(5))
def test_no_change_of_one_threshold_improves_two_tuned_stages(seed, change_record):
    record = change_record(draw_record(seed, n=25))
    lam = 0.05
    (setting,) = tune_thresholds(record, np.array([lam]), max_passes=20)
    tuned_accuracy = compute_net_accuracy(record, setting, lam)
    settings = list(list_settings(record))
    for stage in range(2):
        neighbour_accuracies = [
            compute_net_accuracy(record, other_setting, lam)
            for other_setting in settings
            if other_setting[1 - stage] == setting[1 - stage]
        ]
        assert max(neighbour_accuracies) <= tuned_accuracy + 1e-9
    # changes of both thresholds improve it only slightly
    best_accuracy = max(
        compute_net_accuracy(record, other_setting, lam) for other_setting in settings
    )
    assert best_accuracy <= tuned_accuracy + 0.05


@pytest.mark.slow
def test_sweeps_of_the_price_from_both_ends_nearly_always_find_the_best_setting():
    # of 240 prices, a sweep from the highest price alone fails at 29, both sweeps at 1
    lams = np.geomspace(1, 0.01, 12)
    n_misses = 0
    for seed in range(20):
        record = draw_record(seed, n=10)
        settings = list(list_settings(record))
        for lam, setting in zip(lams, tune_thresholds(record, lams), strict=True):
            best_accuracy = max(
                compute_net_accuracy(record, other_setting, lam) for other_setting in settings
            )
            n_misses += compute_net_accuracy(record, setting, lam) < best_accuracy - 1e-9
    assert n_misses <= 2


def test_frontier_points_include_cloud_only_and_each_stage_alone():
    record = draw_record(5, n_stages=3)
    settings = {point.thresholds for point in frontier_points(record)}
    assert (None, None, None) in settings
    for stage in range(3):
        thresholds = [None] * 3
        thresholds[stage] = ALWAYS_STOP
        assert tuple(thresholds) in settings


def test_rows_with_nan_scores_never_stop_and_never_set_a_threshold():
    record = draw_record(7, n_stages=1)
    record.scores[0, :10] = np.nan
    settings = tune_thresholds(record, np.geomspace(1e-3, 10, 20))
    assert any(threshold is not None for (threshold,) in settings)
    for setting in settings:
        assert setting[0] is None or np.isfinite(setting[0])
        assert (
            record.measure(setting).offload_rate
            >= record.weights[:10].sum() / record.weights.sum() - 1e-12
        )


# -- costs per row -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_equal_costs_per_row_change_no_setting_or_point(seed):
    record = draw_record(seed, n=120, n_stages=3)
    costs_per_row = np.repeat(record.exit_costs[:, None], 120, axis=1)
    record_of_repeated_costs = replace(
        record, exit_costs=costs_per_row, cost_limits=record.exit_costs
    )
    lams = np.geomspace(1e-3, 1, 12)
    assert tune_thresholds(record_of_repeated_costs, lams) == tune_thresholds(record, lams)
    points = frontier_points(record_of_repeated_costs)
    for point, expected_point in zip(points, frontier_points(record), strict=True):
        assert point.thresholds == expected_point.thresholds
        assert point.cost == pytest.approx(expected_point.cost, rel=1e-12)
        assert msgspec.structs.replace(point, cost=expected_point.cost) == expected_point


def test_the_highest_costs_of_costs_per_row_must_be_given():
    record = draw_costs_per_row(draw_record(4))
    with pytest.raises(InputError, match="give cost_limits"):
        record.highest_costs()
    limits = np.array([5.0, 9.0, 13.0])
    assert replace(record, cost_limits=limits).highest_costs() is limits
    assert record.lowest_costs().tolist() == [0.0] * 3


# -- figures computed by hand --------------------------------------------------------------


def make_small_record(**changes):
    """Make a record of two stages; thresholds (1, 5) stop its rows at exits 0, 1, 2 and 2."""
    record = CascadeRecord(
        scores=np.array([[2.0, 0.0, 0.5, np.nan], [9.0, 5.0, 4.0, np.nan]], np.float32),
        correctness=np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 1]], float),
        exit_costs=np.array([1.0, 3.0, 8.0]),
        weights=np.array([1.0, 1.0, 0.5, 1.5]),
        splitter=RowSplitter(4),
        agrees_with_reference=np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], bool),
        tree_counts=(10, 100),
        model_bytes=(7, 70),
        packed_sizes=PackedSizes.without_shared_thresholds((5, 50)),
    )
    return replace(record, **changes)


def test_a_point_has_the_figures_of_its_rows():
    point = make_small_record().measure((1.0, 5.0), chain=3)
    assert point.exit_shares == (0.25, 0.25, 0.5)  # the weights 1, 1 and 0.5 + 1.5 of 4
    assert point.cost == pytest.approx((1 + 3 + 2 * 8) / 4)
    assert point.accuracy == pytest.approx((1 + 0 + 0 + 1.5) / 4)
    assert point.offload_rate == 0.5
    assert point.agreement == pytest.approx((0 + 0 + 0.5 + 1.5) / 4)
    assert point.trees == pytest.approx((10 + 3 * 110) / 4)  # a weight of 3 passes both stages
    # sums of both stages
    assert (point.nbytes, point.bytes, point.max_cost, point.chain) == (77, 55, 8.0, 3)
    # gains over the reference are 1, -1, 0, 0; their mean is 0
    assert point.accuracy_error == pytest.approx(((1 + 1) / 4 / 4) ** 0.5)
    assert (point.weighted_accuracy, point.recall, point.validation_groups) == (None, None, None)


def test_stages_that_never_stop_add_nothing_to_the_figures():
    point = make_small_record().measure((None, 5.0))
    assert point.exit_shares == (0.0, 0.5, 0.5)
    assert (point.trees, point.nbytes, point.bytes) == (100.0, 70, 50)
    cloud_only = make_small_record().measure((None, None))
    assert (cloud_only.trees, cloud_only.nbytes, cloud_only.bytes) == (0.0, 0, 5)  # the smallest
    point = make_small_record(
        tree_counts=(), model_bytes=(), packed_sizes=None, agrees_with_reference=None
    ).measure((1.0, None))
    assert (point.trees, point.nbytes, point.bytes, point.agreement) == (0.0, 0, 0, None)
    # a row with a NaN score passes even a stage that always stops
    assert make_small_record().measure((ALWAYS_STOP, None)).max_cost == 8.0
    record_without_nan = make_small_record(scores=np.ones((2, 4), np.float32))
    assert record_without_nan.measure((ALWAYS_STOP, None)).max_cost == 1.0


def test_highest_costs_are_stated_only_when_they_are_known():
    costs_per_row = np.repeat([[1.0], [3.0], [8.0]], 4, axis=1)
    record_of_costs_per_row = make_small_record(exit_costs=costs_per_row)
    assert record_of_costs_per_row.measure((1.0, 5.0)).max_cost is None
    limits = np.array([2.0, 4.0, 9.0])
    record_with_limits = replace(record_of_costs_per_row, cost_limits=limits)
    assert record_with_limits.measure((1.0, 5.0)).max_cost == 9.0
    assert make_small_record(cost_limits=limits).within_cost(9.0).can_offload
    assert not make_small_record(cost_limits=limits).within_cost(8.99).can_offload
    record = make_small_record()
    assert record.within_cost(8.0) is record
    assert record.within_cost(None) is record
    assert record.within_cost(1.0).within_cost(None).can_offload


def test_class_weights_affect_only_weighted_accuracy_and_its_error():
    record = make_small_record(
        class_weights=np.array([3.0, 1.0, 1.0, 1.0]),
        exit_answers=ExitAnswers(np.array([0, 1, 1, 1]), np.array([[0, 1, 1, 0]] * 3), 2),
    )
    # 1.5 is their weighted mean
    assert record.scaled_class_weights == pytest.approx(np.array([3, 1, 1, 1]) / 1.5)
    assert record.reference_effective_accuracy() == pytest.approx((1 + 1.5) / 6)
    point = record.measure((1.0, 5.0))
    unweighted_point = make_small_record().measure((1.0, 5.0))
    assert point.weighted_accuracy == pytest.approx((3 + 1.5) / 6)
    assert (point.cost, point.accuracy, point.offload_rate) == (
        unweighted_point.cost, unweighted_point.accuracy, unweighted_point.offload_rate
    )  # fmt: skip
    assert point.recall == (1.0, 0.5)
    # the weighted mean of the gains 1, -1, 0, 0 is (3 - 1) / 6
    deviations = np.array([2.0, 2 / 3, 2 / 3, 2 / 3]) * (np.array([1, -1, 0, 0]) - 1 / 3)
    expected_error = (np.average(deviations**2, weights=record.weights) / 4) ** 0.5
    assert point.accuracy_error == pytest.approx(expected_error)


def test_standard_errors_of_groups_are_never_below_those_of_rows():
    record = draw_record(2, n=40)
    error_of_rows = record.measure((0.0, None)).accuracy_error
    two_groups = replace(record, splitter=RowSplitter(40, np.arange(40) % 2))
    # the rows of each group gain or lose together
    gains = record.correctness[record.exits((0.0, None)), np.arange(40)] - record.correctness[-1]
    groups_by_gain = replace(record, splitter=RowSplitter(40, gains.astype(np.int64)))
    assert two_groups.measure((0.0, None)).accuracy_error >= error_of_rows
    assert groups_by_gain.measure((0.0, None)).accuracy_error > 2 * error_of_rows
    assert (record.n_independent_units, two_groups.n_independent_units) == (40, 2)
    assert two_groups.measure((0.0, None)).validation_groups == 2


def test_a_selection_of_rows_keeps_all_fields_of_the_record():
    record = make_small_record(class_weights=np.array([3.0, 1.0, 1.0, 1.0]))
    selection = record.take(np.array([0, 3]))
    assert selection.weights == pytest.approx([0.8, 1.2])  # 1 and 1.5, divided by their mean 1.25
    assert selection.class_weights.tolist() == [3.0, 1.0]
    assert selection.agrees_with_reference.tolist() == [[False, False], [False, True], [True, True]]
    assert selection.exit_costs.tolist() == [1.0, 3.0, 8.0]


# -- tuning --------------------------------------------------------------------------------


def test_a_stage_never_stops_if_stopping_gains_nothing():
    """Both exits are right and cost the same."""
    record = CascadeRecord(
        scores=np.array([[1.0, 2.0]], np.float32),
        correctness=np.ones((2, 2)),
        exit_costs=np.array([1.0, 1.0]),
        weights=np.ones(2),
        splitter=RowSplitter(2),
    )
    assert tune_thresholds(record, np.array([0.1])) == [(None,)]
    record_of_costly_offloads = replace(record, exit_costs=np.array([1.0, 1.5]))
    assert tune_thresholds(record_of_costly_offloads, np.array([0.1])) == [(ALWAYS_STOP,)]


def test_rows_with_equal_scores_stop_together():
    """Stopping only the first of the two rows with the lowest score would be better."""
    record = CascadeRecord(
        scores=np.array([[2.0, 1.0, 1.0]], np.float32),
        correctness=np.array([[1, 1, 0], [1, 0, 1]], float),
        exit_costs=np.array([1.0, 2.0]),
        weights=np.ones(3),
        splitter=RowSplitter(3),
    )
    # no setting is more accurate, and this one is the cheapest
    assert tune_thresholds(record, np.array([0.01])) == [(ALWAYS_STOP,)]
    # now an offload of the last two rows gains more than it costs
    assert tune_thresholds(
        replace(record, correctness=record.correctness * [1, 1, 3]), np.array([0.01])
    ) == [(1.5,)]


def test_tuned_settings_start_at_the_highest_price_for_any_order_of_prices():
    record = draw_record(1, n=60, n_stages=2)
    assert tune_thresholds(record, np.array([0.01, 1.0, 0.1])) == tune_thresholds(
        record, np.array([1.0, 0.1, 0.01])
    )


def test_stages_stop_all_rows_if_offloading_is_too_costly():
    record = draw_record(3).within_cost(0.0)
    points = frontier_points(record)
    assert {point.offload_rate for point in points} == {0.0}
    assert {point.thresholds[-1] for point in points} <= {ALWAYS_STOP, None}
    assert (None, None) not in {point.thresholds for point in points}


def test_smoothed_answers_are_frequencies_that_never_fall_with_the_score():
    record = make_small_record(
        scores=np.array([[1.0, 2.0, 3.0, np.nan]] * 2, np.float32),
        correctness=np.array([[1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]], float),
    )
    frequencies = with_smoothed_answers(record).correctness
    assert frequencies[0].tolist() == [0.5, 0.5, 1.0, 0.0]  # two rows of weight 1 are pooled
    assert frequencies[1].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert frequencies[2].tolist() == [0, 1, 0, 1]
    record_without_scores = replace(record, scores=np.full((2, 4), np.nan, np.float32))
    assert np.array_equal(
        with_smoothed_answers(record_without_scores).correctness, record.correctness
    )


def test_prices_reach_from_a_prohibitive_one_to_nearly_none():
    # the cheapest exit is far below the costliest, so a price of the costliest exit says little
    record = draw_record(3, n=400, n_stages=3)
    record = with_smoothed_answers(replace(record, exit_costs=np.array([0.1, 0.2, 5.0, 50.0])))
    prices = space_prices(record, 40)
    assert prices[-1] == pytest.approx(3e-3 / 50)
    settings = tune_thresholds(record, np.array([1.0, 1 / 1.01]) * prices[0])
    assert [setting[0] for setting in settings] == [ALWAYS_STOP, ALWAYS_STOP]
    lower_setting = tune_thresholds(record, prices[1:12])[-1]
    assert lower_setting[0] != ALWAYS_STOP


def test_costs_of_no_or_extreme_differences_have_finite_prices():
    record = with_smoothed_answers(draw_record(3, n=40))
    for exit_costs in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1e-300, 1.0], [0.0, 1.0, 1e300]):
        prices = space_prices(replace(record, exit_costs=np.array(exit_costs)), 10)
        assert np.isfinite(prices).all()
        assert (np.diff(prices) < 0).all()


def test_tuned_points_are_corrected_by_their_optimism_on_unseen_fifths():
    record = draw_record(6, n=90)
    smoothed_record = with_smoothed_answers(record)
    prices = space_prices(smoothed_record, 12)
    settings = tune_thresholds(smoothed_record, prices)
    crossfit_indices = np.array([0, 5, 10, 11])  # every fifth price and the last
    gaps = np.zeros((2, 4))
    for fit_rows, unseen_rows in record.splitter.folds(None, 5, 0):
        fit_record, unseen_record = record.take(fit_rows), record.take(unseen_rows)
        fold_settings = tune_thresholds(with_smoothed_answers(fit_record), prices[crossfit_indices])
        for number, setting in enumerate(fold_settings):
            fit_point, unseen_point = fit_record.measure(setting), unseen_record.measure(setting)
            gaps[0, number] += (unseen_point.cost - fit_point.cost) / 5
            gaps[1, number] += (fit_point.accuracy - unseen_point.accuracy) / 5
    extra_cost, lost_accuracy = (
        np.maximum(np.interp(np.arange(12), crossfit_indices, gaps_of_figure), 0)
        for gaps_of_figure in gaps
    )
    points = frontier_points(record, n_prices=12, n_thresholds=2, chain=4)
    assert {point.chain for point in points} == {4}
    first_price_of_setting = {}
    for price_index, setting in enumerate(settings):
        first_price_of_setting.setdefault(setting, price_index)
    assert len(first_price_of_setting) > 3  # enough settings are compared
    # the frontier has further points, of single thresholds, after the tuned ones
    tuned_settings = first_price_of_setting.items()
    for point, (setting, price_index) in zip(points, tuned_settings, strict=False):
        measured_point = record.measure(setting)
        assert point.thresholds == setting
        assert point.cost == pytest.approx(measured_point.cost + extra_cost[price_index])
        assert point.accuracy == pytest.approx(measured_point.accuracy - lost_accuracy[price_index])


def test_each_threshold_tried_alone_has_twenty_rows_of_scores():
    # a threshold for each 20 scores, at least two and at most the given five
    for n, n_thresholds in ((39, 2), (60, 3), (1000, 5)):
        record = draw_record(2, n=n, n_stages=1)
        thresholds = [point.thresholds[0] for point in frontier_points(record, n_thresholds=5)]
        finite_thresholds = [
            threshold for threshold in thresholds if threshold not in (None, ALWAYS_STOP)
        ]
        assert len(finite_thresholds) == n_thresholds
        distinct_scores = np.unique(record.scores[0])
        assert min(finite_thresholds) == midpoint_threshold(
            float(distinct_scores[0]), float(distinct_scores[1])
        )
        assert max(finite_thresholds) == midpoint_threshold(
            float(distinct_scores[-2]), float(distinct_scores[-1])
        )
    record = draw_record(2, n=60, n_stages=1)
    points = frontier_points(replace(record, scores=np.ones((1, 60), np.float32)))
    assert {point.thresholds for point in points} == {(ALWAYS_STOP,), (None,)}
    two_scores = (np.arange(60) % 2)[np.newaxis].astype(np.float32)
    points = frontier_points(replace(record, scores=two_scores))
    assert {point.thresholds for point in points} == {(ALWAYS_STOP,), (0.5,), (None,)}
    assert {point.chain for point in points} == {0}


def test_points_tuned_for_class_weights_are_measured_without_the_weights():
    record = draw_record(4, n=200)
    answers = ExitAnswers(np.arange(200) % 2, np.zeros((3, 200), np.int64), 2)
    record = replace(record, exit_answers=answers)
    points_without_weights = frontier_points(record, n_prices=10, n_thresholds=2)
    points_with_weights = frontier_points(
        record, n_prices=10, n_thresholds=2, extra_class_weights=[np.array([0.1, 5.0])]
    )
    assert len(points_with_weights) > len(points_without_weights)
    for point in points_with_weights:
        assert point.weighted_accuracy is None
        assert point.recall == record.measure(point.thresholds).recall
