"""Test promises at the limits of their ranges, the statistical tests and the certificates."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.candidate_points import list_candidates
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ClassBounds, ExitAnswers
from gatewise_training.operating_points.class_guarantee import (
    check_class_rows,
    classes_pass,
    highest_recalls_text,
)
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import (
    Promise,
    _Candidate,
    _compute_risks,
    certify,
    check_records,
    row_losses,
)
from gatewise_training.operating_points.thresholds import frontier_points

N_DRAWS = 200

make_promise = Promise.from_bounds


def draw_record(seed, n_rows, has_cloud=True):
    """Draw a record of three stages that err more often at low scores."""
    rng = np.random.default_rng(seed)
    difficulty = rng.exponential(size=n_rows)
    skills = np.array([[0.4], [0.7], [1.0]])
    scores = (skills * rng.gamma(2.0, size=(3, n_rows)) / (0.2 + difficulty)).astype(np.float32)
    is_right = rng.random((3, n_rows)) < 1 - 0.5 * np.exp(-scores)
    is_last_right = rng.random(n_rows) < 0.99 if has_cloud else is_right[-1]
    costs = np.array([1.0, 3.0, 6.0, 12.0 if has_cloud else 6.0])
    return CascadeRecord(
        scores, np.vstack([is_right, is_last_right]).astype(float), costs, np.ones(n_rows),
        RowSplitter(n_rows), has_cloud,
    )  # fmt: skip


def list_points(tuning_record):
    reference_accuracy = float(tuning_record.correctness[-1].mean())
    return Frontier.from_points(
        frontier_points(tuning_record, n_prices=60), reference_accuracy=reference_accuracy
    ).points


def measure_risk(record, point, kind):
    """Get the figure of a point that a promise of this kind bounds."""
    if kind == "max_loss":
        return record.correctness[-1].mean() - point.accuracy
    return point.cost if kind == "budget" else point.offload_rate


def draw_certified_risks(tuning_record, pool, n_drawn, **bound):
    """Certify points on rows drawn from the pool and yield their risks on the whole pool."""
    (kind,) = bound
    candidates = list_candidates(
        tuning_record, list_points(tuning_record), make_promise(**bound), n_rows=n_drawn
    )
    # a coarser path saves time
    candidates = candidates[:: {"max_loss": 6, "budget": 4}.get(kind, 2)]
    rng = np.random.default_rng(0)
    risk_by_thresholds = {}
    for _ in range(N_DRAWS):
        drawn_record = pool.take(rng.integers(0, len(pool.weights), n_drawn))
        certified_point = certify(drawn_record, candidates, make_promise(**bound))
        if certified_point.thresholds not in risk_by_thresholds:
            point = pool.measure(certified_point.thresholds)
            risk_by_thresholds[certified_point.thresholds] = measure_risk(pool, point, kind)
        yield risk_by_thresholds[certified_point.thresholds]


#: The level 0.05 and two standard deviations of a share of the draws.
MAX_VIOLATION_RATE = 0.05 + 2 * (0.05 * 0.95 / N_DRAWS) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "bound",
    [{"offload_rate": 0.05}, {"offload_rate": 0.2}, {"max_loss": 0.02}, {"budget": 8.0}],
    ids=lambda bound: "-".join(map(str, *bound.items())),
)
def test_guarantees_hold_at_their_confidence(bound):
    (limit,) = bound.values()
    risks = np.array(
        list(draw_certified_risks(draw_record(0, 1500), draw_record(1, 40_000), 1000, **bound))
    )
    assert (risks > limit).mean() <= MAX_VIOLATION_RATE
    assert 0 < 1 - risks.mean() / limit < 0.75  # the bound is not trivially loose


@pytest.mark.slow
def test_certificates_state_their_terms_and_test():
    tuning_record, calibration_record = draw_record(2, 1500), draw_record(3, 1200)
    for bound, method in (
        ({"offload_rate": 0.1}, "exact binomial"),
        ({"max_loss": 0.03}, "exact paired difference"),
        ({"budget": 4.0}, "betting"),
    ):
        candidates = list_candidates(
            tuning_record, list_points(tuning_record), make_promise(**bound), n_rows=1200
        )
        certified_point = certify(calibration_record, candidates, make_promise(**bound))
        ((kind, bound_value),) = bound.items()
        assert json.loads(json.dumps(certified_point.guarantee)) == {
            "kind": kind,
            "bound": bound_value,
            "confidence": 0.95,
            "calibration_rows": 1200,
            "method": method,
        }
        assert msgspec.structs.replace(
            certified_point, guarantee=None
        ) == calibration_record.measure(certified_point.thresholds)
        assert measure_risk(calibration_record, certified_point, kind) < bound_value


def test_testing_stops_at_the_first_failure():
    record = draw_record(4, 1000)
    safe_point, risky_point, failing_point = (
        record.measure(thresholds)
        for thresholds in ((None, 2.0, 1.0), (None, 3.0, 1.5), (9.0,) * 3)
    )
    for candidates, expected_point in (
        ([safe_point, risky_point], risky_point),
        ([safe_point, failing_point, risky_point], safe_point),
        ([failing_point, safe_point, risky_point], None),
        ([], None),
    ):
        certified_point = certify(
            record, candidates, make_promise(offload_rate=risky_point.offload_rate + 0.05)
        )
        assert (certified_point and certified_point.thresholds) == (
            expected_point and expected_point.thresholds
        )
    # it breaks the bound of the test
    assert failing_point.offload_rate > risky_point.offload_rate + 0.05


def test_bets_do_not_depend_on_the_order_of_rows():
    """If the order counted, a bet on rows sorted by cost could win before it loses."""
    record = draw_record(9, 2000)
    point = record.measure((6.0, 4.0, 1.0))
    rows_by_cost = np.argsort(record.exit_costs[record.exits(point.thresholds)], kind="stable")
    bound = point.cost - 0.1  # lower than the true mean
    assert certify(record.take(rows_by_cost), [point], make_promise(budget=bound)) is None
    assert (
        certify(record.take(rows_by_cost[::-1]), [point], make_promise(budget=point.cost + 1.0))
        is not None
    )


def test_rows_that_cannot_calibrate_are_refused():
    record = draw_record(11, 10)
    weighted_record = replace(record, weights=np.linspace(0.5, 1.5, 10))
    with pytest.raises(InputError, match="weight 1"):
        certify(weighted_record, [], make_promise(budget=1))
    with pytest.raises(InputError, match="same rows"):
        certify([record, draw_record(11, 9)], [], make_promise(budget=1))
    with pytest.raises(InputError, match="same rows"):
        certify([], [], make_promise(budget=1))
    with pytest.raises(InputError, match="between 0 and 1"):
        certify(replace(record, correctness=2 * record.correctness), [], make_promise(max_loss=0.1))
    with pytest.raises(InputError, match="answers of all exits"):
        certify(record, [], make_promise(max_loss=0.1, by_class=make_bounds(min_recall={0: 0.5})))
    assert check_records(weighted_record, make_promise(budget=1), accepts_weights=True) == [
        weighted_record
    ]
    record_of_shares = replace(record, correctness=record.correctness * 0.5)
    # a budget also accepts answers that are shares
    assert certify(record_of_shares, [], make_promise(budget=1)) is None


# -- promises ------------------------------------------------------------------------------


def make_bounds(**by_class):
    return ClassBounds.from_mappings((0, 1), **by_class)


def test_promises_accept_the_limits_of_their_range():
    for terms in ({"max_loss": 0.0}, {"max_loss": 1.0}, {"offload_rate": 1}, {"budget": 0}):
        ((kind, bound),) = terms.items()
        accepted_promise = make_promise(**({"offload_rate": None} | terms))
        assert accepted_promise.kind == kind
        assert accepted_promise.bound == bound
        assert accepted_promise.confidence == 0.95  # the default
        assert accepted_promise.by_class is None
    assert make_promise(0.9, budget=1e9).level == pytest.approx(0.1)  # 1 - 0.9
    for terms in ({"max_loss": 1.001}, {"offload_rate": -0.001}, {"budget": float("inf")}):
        with pytest.raises(InputError):
            make_promise(**terms)
    with pytest.raises(InputError, match="between 0 and 1, not 0"):
        make_promise(0.0, budget=1.0)
    assert make_promise(budget=1.0, by_class=make_bounds()).by_class is None
    splitter_of_three_rows = RowSplitter(3)
    make_promise(budget=1.0).check_rows(np.zeros(3, np.int64), splitter_of_three_rows)
    with pytest.raises(InputError, match="calibration rows of this class"):
        make_promise(budget=1.0, by_class=make_bounds(min_recall={0: 0.9})).check_rows(
            np.zeros(3, np.int64), splitter_of_three_rows
        )


@pytest.mark.parametrize("has_groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize(
    "bounds", [make_bounds(min_recall={1: 0.9}), make_bounds(max_loss={1: 0.1})], ids=str
)
def test_as_many_rows_of_a_class_as_are_asked_for_certify_its_bound(bounds, has_groups):
    def make_rows(n):
        return np.ones(n, np.int64), RowSplitter(n, groups=np.arange(n) if has_groups else None)

    with pytest.raises(InputError, match=r"needs \d+ cal") as refusal:
        check_class_rows(bounds, *make_rows(5), level=0.05)
    n_needed = int(re.search(r"needs (\d+)", str(refusal.value)).group(1))
    no_losses = np.zeros(n_needed)
    exits = np.zeros(n_needed, np.int64)
    for n in (n_needed - 1, n_needed):
        truth, splitter = make_rows(n)
        answers = ExitAnswers(truth, truth[np.newaxis], 2)
        passes = classes_pass(bounds, answers, splitter, exits[:n], no_losses[:n], 0.05)
        assert passes == (n == n_needed)
    check_class_rows(bounds, *make_rows(n_needed), level=0.05)


def test_the_highest_recall_of_an_error_is_the_highest_that_groups_certify():
    truth, splitter = np.ones(40, np.int64), RowSplitter(40, groups=np.arange(40) // 2)
    text = highest_recalls_text(make_bounds(min_recall={1: 0.99}), truth, splitter, 0.05)
    highest_recall = float(re.search(r"20 groups with class '1': (\S+) if none", text).group(1))
    answers = ExitAnswers(truth, truth[np.newaxis], 2)
    for recall, passes in ((highest_recall - 0.001, True), (highest_recall + 0.001, False)):
        bounds = make_bounds(min_recall={1: recall})
        no_losses = np.zeros(40)
        exits = np.zeros(40, np.int64)
        assert classes_pass(bounds, answers, splitter, exits, no_losses, 0.05) == passes


def test_a_promise_that_no_row_can_break_is_certain():
    record = draw_record(12, 50)
    cloud_only, edge_only, mixed_point = (
        record.measure(thresholds)
        for thresholds in ((None,) * 3, (ALWAYS_STOP, None, None), (1.0, None, ALWAYS_STOP))
    )

    def is_certain(point, cascades=(record,), **terms):
        return make_promise(**terms).is_certain(cascades, point)

    assert is_certain(cloud_only, max_loss=0.0)
    assert not is_certain(edge_only, max_loss=0.999)
    assert is_certain(edge_only, max_loss=1.0)
    assert is_certain(edge_only, offload_rate=0.0)
    assert not is_certain(cloud_only, offload_rate=0.99)
    # the cheapest exit costs 1, so the lowest possible cost cannot be promised
    assert certify(record, [edge_only], make_promise(budget=0.9)) is None
    # a stage with a NaN score does not always stop
    record_with_nan = draw_record(12, 50)
    record_with_nan.scores[0, 0] = np.nan
    assert certify(record_with_nan, [edge_only], make_promise(offload_rate=0.01)) is None
    # the last stage costs 6 and the cloud 12
    assert [is_certain(mixed_point, budget=limit) for limit in (5.99, 6.0)] == [False, True]
    assert [is_certain(cloud_only, budget=limit) for limit in (11.99, 12.0)] == [False, True]
    record_without_cloud = draw_record(12, 50, has_cloud=False)
    last_stage = record_without_cloud.measure((None, None, ALWAYS_STOP))
    assert is_certain(last_stage, (record_without_cloud,), offload_rate=0.0)
    assert is_certain(last_stage, (record_without_cloud,), max_loss=0.0)
    assert not is_certain(
        record_without_cloud.measure((1.0, None, ALWAYS_STOP)),
        (record_without_cloud,),
        max_loss=0.0,
    )
    other_record = draw_record(13, 50, has_cloud=False)
    # the last stage of the other cascade is the reference
    assert not is_certain(last_stage, (record_without_cloud, other_record), max_loss=0.0)


# -- tests at their limits -----------------------------------------------------------------


def make_one_stage_record(n_offloaded, n_rows, **changes):
    """Make a record of one stage that offloads the first rows; all answers are right."""
    scores = np.ones((1, n_rows), np.float32)
    scores[0, :n_offloaded] = -1
    record = CascadeRecord(
        scores, np.ones((2, n_rows)), np.array([1.0, 5.0]), np.ones(n_rows), RowSplitter(n_rows)
    )
    return replace(record, **changes)


def test_offload_rates_are_certified_by_the_binomial_tail():
    """59 rows without an offload certify a rate of 0.05 because 0.95**59 < 0.05.

    With one offload, 93 rows are needed.
    """
    cases = ((0, 58, False), (0, 59, True), (1, 92, False), (1, 93, True))
    for n_offloaded, n_rows, is_certified in cases:
        record = make_one_stage_record(n_offloaded, n_rows)
        point = record.measure((0.5,))
        certified_point = certify(record, [point], make_promise(offload_rate=0.05))
        assert (certified_point is not None) == is_certified


def test_losses_are_certified_by_rows_that_get_worse_less_rows_that_get_better():
    n_rows = 400
    # the bound of 0.02 is a net loss of 8 of 400 rows
    for n_worse, n_better, is_certified in ((0, 0, True), (8, 0, False), (8, 12, True)):
        correctness = np.ones((2, n_rows))
        correctness[0, :n_worse] = 0
        correctness[1, n_worse : n_worse + n_better] = 0
        record = make_one_stage_record(0, n_rows, correctness=correctness)
        certified_point = certify(record, [record.measure((0.5,))], make_promise(max_loss=0.02))
        assert (certified_point is not None) == is_certified
    wrong_record = make_one_stage_record(
        0, n_rows, correctness=np.vstack([np.zeros(n_rows), np.ones(n_rows)])
    )
    certified_point = certify(
        wrong_record, [wrong_record.measure((0.5,))], make_promise(max_loss=1.0)
    )
    assert certified_point.guarantee["method"] == "certain"


def test_budgets_between_the_lowest_and_highest_cost_are_certified_by_bets():
    record = make_one_stage_record(20, 400)  # mean cost 1.2
    point = record.measure((0.5,))
    assert certify(record, [point], make_promise(budget=1.5)).guarantee["method"] == "betting"
    assert certify(record, [point], make_promise(budget=1.21)) is None  # too close to the mean cost
    # the highest cost
    assert certify(record, [point], make_promise(budget=5.0)).guarantee["method"] == "certain"
    assert certify(record, [point], make_promise(budget=1.0)) is None  # the lowest possible cost


def test_weighted_losses_are_certified_by_bets_on_weighted_rows():
    n_rows = 600
    truth = np.arange(n_rows) % 2
    correctness = np.ones((2, n_rows))
    correctness[0, truth == 1] = np.arange(n_rows // 2) >= 15  # 15 of the second class are lost
    for weight, is_certified in ((1.0, True), (30.0, False)):
        record = make_one_stage_record(
            0,
            n_rows,
            correctness=correctness,
            class_weights=np.where(truth == 1, weight, 1.0),
            exit_answers=ExitAnswers(truth, np.stack([truth, truth]), 2),
        )
        certified_point = certify(record, [record.measure((0.5,))], make_promise(max_loss=0.048))
        assert (certified_point is not None) == is_certified
        if certified_point is not None:
            assert certified_point.guarantee["method"] == "betting"
            assert certified_point.guarantee["loss"] == "weighted accuracy"


def test_weighted_losses_reach_both_limits_of_their_range():
    correctness = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])  # lost, gained, equal
    record = make_one_stage_record(
        0, 3, correctness=correctness, class_weights=np.array([2.0, 2.0, 1.0])
    )
    point = record.measure((0.5,))
    candidate = _Candidate(point, record, record.exits(point.thresholds))
    # the loss in weighted accuracy less the bound 0.1, in units of the row's weight
    row_risks, lowest, highest, bound = _compute_risks(
        [candidate], record, make_promise(max_loss=0.1)
    )
    largest_weight = 2 / (5 / 3)  # the weights 2, 2 and 1 are divided by their mean 5/3
    assert row_risks[0].tolist() == pytest.approx(
        [0.9 * largest_weight, -1.1 * largest_weight, -0.1 * largest_weight / 2]
    )
    assert (lowest[0], highest[0]) == (row_risks.min(), row_risks.max())
    assert bound == 0.0


def test_rows_with_groups_are_tested_by_bets_on_groups():
    # ten groups are too few for these bounds, although none of their rows is lost
    for n_groups, is_certified in ((10, False), (200, True)):
        groups = np.arange(1000) % n_groups
        record = make_one_stage_record(0, 1000, splitter=RowSplitter(1000, groups))
        for terms in ({"offload_rate": 0.05}, {"max_loss": 0.05}, {"budget": 1.2}):
            certified_point = certify(record, [record.measure((0.5,))], make_promise(**terms))
            assert (certified_point is not None) == is_certified, terms
            if certified_point is not None:
                assert certified_point.guarantee["method"] == "betting on groups"
                assert certified_point.guarantee["calibration_groups"] == n_groups
                assert certified_point.guarantee["calibration_rows"] == 1000


def test_certificates_also_test_and_state_bounds_by_class():
    n_rows = 400
    truth = np.arange(n_rows) % 2
    labels_by_exit = np.stack([truth, truth])
    for n_missed, is_certified in ((2, True), (30, False)):
        stage_answers = truth.copy()
        stage_answers[np.flatnonzero(truth == 1)[:n_missed]] = 0
        labels_by_exit = np.stack([stage_answers, truth])
        record = make_one_stage_record(
            0,
            n_rows,
            correctness=(labels_by_exit == truth).astype(float),
            exit_answers=ExitAnswers(truth, labels_by_exit, 2),
        )
        promise = make_promise(
            max_loss=0.2, by_class=make_bounds(min_recall={1: 0.9}, max_loss={1: 0.1, 0: 0.05})
        )
        certified_point = certify(record, [record.measure((0.5,))], promise)
        assert (certified_point is not None) == is_certified
        if certified_point is not None:
            assert certified_point.guarantee["method"] == (
                "exact paired difference; by class exact binomial, exact paired difference"
            )
            assert certified_point.guarantee["min_recall 1"] == 0.9
            assert certified_point.guarantee["unused max_loss 1"] == 0.9  # 0.01 of 0.1 is lost
            assert certified_point.guarantee["unused max_loss 0"] == 1.0


def test_more_candidates_than_one_batch_holds_are_all_tested():
    record = make_one_stage_record(0, 200)
    candidates = [record.measure((threshold,)) for threshold in np.linspace(0.1, 0.9, 70).tolist()]
    certified_point = certify(record, candidates, make_promise(offload_rate=0.05))
    assert certified_point.thresholds == candidates[-1].thresholds
    failing_record = make_one_stage_record(100, 200)
    assert certify(failing_record, candidates, make_promise(offload_rate=0.05)) is None


def test_rows_are_lost_when_only_the_reference_is_right():
    correctness = np.array([[1, 0, 1, 0], [1, 1, 0, 0]], float)
    record = make_one_stage_record(0, 4, correctness=correctness)
    assert row_losses(record, record, np.zeros(4, np.int64)).tolist() == [0, 1, -1, 0]
    assert row_losses(record, record, np.ones(4, np.int64)).tolist() == [0, 0, 0, 0]
