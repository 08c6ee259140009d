"""Test figures by class, class weights, and bounds and losses by class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics
from sklearn.utils.class_weight import compute_class_weight

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.candidate_points import list_candidates
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    ExitAnswers,
    class_weights,
    tuning_class_weights,
    values_by_class,
)
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import frontier_points, tune_thresholds


def draw_record(seed, n=3000, rare_share=0.04):
    """Draw a record of two stages in which class 0 is rare and is missed most often."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(n) >= rare_share).astype(np.int64)
    signals = np.where(truth == 1, 1.0, -1.0)
    margins = [signals * skill + 0.6 + rng.normal(size=n) for skill in (0.8, 1.6)]
    cloud_margins = signals * 2.2 + rng.normal(size=n)
    labels_by_exit = np.stack(
        [(margin > 0).astype(np.int64) for margin in (*margins, cloud_margins)]
    )
    probabilities = []
    for margin in (*margins, cloud_margins):
        class_1_probabilities = 1 / (1 + np.exp(-margin))
        probabilities.append(np.column_stack([1 - class_1_probabilities, class_1_probabilities]))
    return CascadeRecord(
        scores=np.abs(np.stack(margins)).astype(np.float32),
        correctness=(labels_by_exit == truth).astype(float),
        exit_costs=np.array([1.0, 3.0, 8.0]),
        weights=np.ones(n),
        splitter=RowSplitter(n),
        agrees_with_reference=labels_by_exit == labels_by_exit[-1],
        exit_answers=ExitAnswers.from_probabilities(truth, labels_by_exit, 2, probabilities),
    )


BOUNDS = ClassBounds.from_mappings((0, 1), {0: 0.8})


@pytest.mark.parametrize("n_classes", [2, 4])
def test_figures_equal_those_of_scikit_learn(n_classes):
    rng = np.random.default_rng(0)
    n = 400
    truth = rng.integers(0, n_classes, n)
    weights = rng.uniform(0.5, 2, n)
    probabilities_by_exit = [rng.dirichlet(np.ones(n_classes), n) for _ in range(3)]
    labels_by_exit = np.stack(
        [probabilities.argmax(axis=1) for probabilities in probabilities_by_exit]
    )
    answers = ExitAnswers.from_probabilities(
        truth, labels_by_exit, n_classes, probabilities_by_exit
    )
    exits = rng.integers(0, 3, n)
    class_figures = answers.figures(exits, weights)
    labels = labels_by_exit[exits, np.arange(n)]
    probabilities = np.stack(probabilities_by_exit)[exits, np.arange(n)]
    options = {"average": None, "sample_weight": weights}
    assert class_figures["recall"] == pytest.approx(metrics.recall_score(truth, labels, **options))
    assert class_figures["precision"] == pytest.approx(
        metrics.precision_score(truth, labels, **options)
    )
    assert class_figures["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(truth, labels, sample_weight=weights)
    )
    assert class_figures["log_loss"] == pytest.approx(
        metrics.log_loss(truth, probabilities, sample_weight=weights)
    )
    assert class_figures["brier_score"] == pytest.approx(
        metrics.brier_score_loss(
            truth, probabilities[:, 1] if n_classes == 2 else probabilities, sample_weight=weights
        )
    )


def test_a_class_without_rows_or_answers_has_no_recall_or_precision():
    truth, labels_by_exit = np.array([0, 0, 1]), np.array([[1, 1, 1]])
    answers = ExitAnswers.from_probabilities(truth, labels_by_exit, 3, [None])
    class_figures = answers.figures(np.zeros(3, np.int64), np.ones(3))
    assert class_figures["recall"] == (0.0, 1.0, None)
    assert class_figures["precision"] == (None, pytest.approx(1 / 3), None)
    assert class_figures["log_loss"] is None


def test_balanced_weights_equal_those_of_scikit_learn():
    y = np.repeat([0, 1, 2], [50, 30, 20])
    labels = np.array(["a", "b", "c"])
    assert class_weights("balanced", y, labels) == pytest.approx(
        compute_class_weight("balanced", classes=labels, y=labels[y])
    )
    # classes without a weight have the weight 1
    assert class_weights({"c": 5}, y, labels).tolist() == [1, 1, 5]


def test_one_message_lists_all_errors_of_bounds():
    with pytest.raises(InputError, match=r"no class 'x'; there are ok, 2.*'ok' has 1.5"):
        ClassBounds.from_mappings(("ok", 2), {"x": 0.5, "ok": 1.5})
    assert ClassBounds.from_mappings(("ok", 2), {"2": 0.5}).min_recall == (None, 0.5)
    assert not ClassBounds.from_mappings(("ok", 2), {"ok": 0})


def make_frontier(record, bounds):
    weights_of_classes = [np.array([weight, 1.0]) for weight in (3.0, 24.0)]
    points = frontier_points(record, n_prices=25, extra_class_weights=weights_of_classes)
    curve = Frontier.from_points(
        points, reference_accuracy=record.reference_effective_accuracy(), classes=(0, 1),
        class_rows=record.exit_answers.class_rows(),
    )  # fmt: skip
    return curve.with_class_points(points, bounds)


def keeps_all_bounds(pool, thresholds, goal, bounds):
    """Whether thresholds keep the goal and the recall bound on all rows of a pool."""
    point = pool.measure(thresholds)
    loss = pool.reference_effective_accuracy() - point.effective_accuracy
    return (
        (bounds is None or point.recall[0] >= 0.8)
        and point.cost <= goal.get("budget", np.inf)
        and loss <= goal.get("max_loss", np.inf)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "bounds", "weight"),
    [
        ({"max_loss": 0.02}, BOUNDS, None),
        ({"budget": 6.0}, BOUNDS, None),
        ({"max_loss": 0.03}, None, 8.0),
    ],
    ids=["recall", "recall in a budget", "weighted loss"],
)
def test_certified_points_keep_all_bounds_with_the_stated_confidence(goal, bounds, weight):
    def add_class_weights(record):
        if weight is None:
            return record
        return replace(record, class_weights=np.where(record.exit_answers.truth == 0, weight, 1.0))

    tuning_record, pool = (
        add_class_weights(draw_record(seed, n)) for seed, n in ((0, 4000), (1, 40_000))
    )
    curve = make_frontier(tuning_record, bounds)
    promise = Promise.from_bounds(0.9, by_class=bounds, **goal)
    # every eighth candidate, because each draw certifies all of them
    candidates = list_candidates(
        tuning_record, (*curve.points, *curve.off_curve_points), promise, n_rows=3000
    )[::8]
    rng = np.random.default_rng(0)
    n_draws = 80
    n_violated = n_certified = 0
    for _ in range(n_draws):
        point = certify(pool.take(rng.integers(0, 40_000, 3000)), candidates, promise)
        if point is None:
            continue
        n_certified += 1
        n_violated += not keeps_all_bounds(pool, point.thresholds, goal, bounds)
    assert n_certified > 0.8 * n_draws  # the bounds can nearly always be certified
    # mean + 2 standard deviations of a binomial number: n p + 2 sqrt(n p (1 - p)), p = 0.1
    assert n_violated <= 0.1 * n_draws + 2 * (n_draws * 0.09) ** 0.5
    if bounds is not None:
        assert point.guarantee["min_recall 0"] == 0.8
        assert "exact binomial" in point.guarantee["method"]


def compute_losses(record, exits):
    """Compute by class the recall of the cloud minus the recall of the answers."""
    truth, labels_by_exit = record.exit_answers.truth, record.exit_answers.labels
    rows = np.arange(len(truth))
    return [
        float(
            np.mean(labels_by_exit[-1][truth == label] == label)
            - np.mean(labels_by_exit[exits, rows][truth == label] == label)
        )
        for label in (0, 1)
    ]


@pytest.mark.parametrize("losses", [{0: 0.1}, {0: 0.05, 1: 0.01}, {0: 0.2, None: 0.02}])
def test_the_cheapest_point_that_keeps_losses_by_class_is_chosen(losses):
    record = draw_record(3)
    tuned_settings = tune_thresholds(record, np.geomspace(1e-4, 1, 30))
    points = [record.measure(thresholds) for thresholds in tuned_settings]
    reference_recall = record.exit_answers.figures(np.full(3000, 2), record.weights)["recall"]
    reference_accuracy = float(record.correctness[-1].mean())
    frontier = Frontier.from_points(
        points,
        reference_accuracy=reference_accuracy,
        classes=(0, 1),
        class_rows=record.exit_answers.class_rows(),
        reference_recall=reference_recall,
    )
    curve_points = set(frontier.points)
    frontier = replace(
        frontier, off_curve_points=tuple(point for point in points if point not in curve_points)
    )
    # the key None bounds the loss of accuracy over all classes; without a key any loss is allowed
    costs_within = []
    for point in points:
        class_losses = compute_losses(record, record.exits(point.thresholds))
        loss = reference_accuracy - point.accuracy
        if (
            all(class_losses[label] <= losses.get(label, 1) + 1e-9 for label in (0, 1))
            and loss <= losses.get(None, 1) + 1e-9
        ):
            costs_within.append(point.cost)
    assert 0 < len(costs_within) < len(points)
    assert frontier.at(max_loss=losses).cost == pytest.approx(min(costs_within))


def test_losses_may_be_numpy_numbers_and_errors_name_losses_instead_of_recalls():
    record = draw_record(0)
    last_exits = np.full(len(record.weights), record.n_stages)
    recall = record.exit_answers.figures(last_exits, record.weights)["recall"]
    edge_only = record.measure((ALWAYS_STOP, None))
    frontier = Frontier.from_points(
        [edge_only], reference_accuracy=0.9, classes=(0, 1), reference_recall=recall
    )
    frontier = replace(frontier, class_rows=record.exit_answers.class_rows())
    assert frontier.at(max_loss={0: np.float32(0.9), 1: np.int64(1)}) == edge_only
    with pytest.raises(InputError, match=r"no operating point keeps max_loss 0=0.01:"):
        frontier.at(max_loss={0: 0.01})


@pytest.mark.slow
def test_losses_by_class_are_certified_with_the_stated_confidence():
    """At most 5 % of certificates on rows drawn from a pool may break a bound in the pool."""
    losses = {0: 0.06, 1: 0.01}
    bounds = ClassBounds.from_mappings((0, 1), None, None, losses)
    promise = Promise.from_bounds(0.95, by_class=bounds, max_loss=1.0)
    pool = draw_record(5, n=40_000, rare_share=0.1)
    tuning_record = draw_record(6, rare_share=0.1)
    points = [
        tuning_record.measure(thresholds)
        for thresholds in tune_thresholds(tuning_record, np.geomspace(1e-4, 1, 30))
    ]
    candidates = list_candidates(tuning_record, points, promise, n_rows=4000)
    rng = np.random.default_rng(0)
    rows_by_class = [np.flatnonzero(pool.exit_answers.truth == label) for label in (0, 1)]
    n_violated = np.zeros(2)
    n_certified, n_draws = 0, 120
    for _ in range(n_draws):
        # the number of rows of a class is fixed because its test depends on it
        rows_of_classes = [rng.choice(rows_by_class[0], 400), rng.choice(rows_by_class[1], 3600)]
        point = certify(pool.take(np.concatenate(rows_of_classes)), candidates, promise)
        if point is None:
            continue
        n_certified += 1
        terms = point.guarantee
        assert terms["max_loss 0"] == 0.06
        assert terms["method"] == "certain; by class exact paired difference"
        assert terms["unused max_loss 0"] > 0
        pool_losses = compute_losses(pool, pool.exits(point.thresholds))
        n_violated += [pool_losses[label] > losses[label] for label in (0, 1)]
    assert n_certified > n_draws / 2
    # the share 0.05 and two standard deviations of a share of the draws
    assert n_violated.max() / n_draws <= 0.05 + 2 * (0.05 * 0.95 / n_draws) ** 0.5


def test_certificates_state_no_unused_loss_for_a_class_without_calibration_rows():
    bounds = ClassBounds.from_mappings((0, 1), max_loss={0: 1, 1: 0.5})
    record = draw_record(8, n=400)
    record = record.take(record.exit_answers.truth == 1)
    promise = Promise.from_bounds(0.95, by_class=bounds, max_loss=1.0)
    terms = certify(record, [record.measure((0.5, 0.5))], promise).guarantee
    assert terms["max_loss 0"] == 1
    assert "unused max_loss 0" not in terms  # JSON has no NaN
    assert terms["unused max_loss 1"] > 0


def test_weights_are_finite_if_all_rows_are_of_one_class():
    bounds = ClassBounds.from_mappings((0, 1), {0: 0.9}, {0: 0.9, 1: 0.9})
    weightings = np.array(tuning_class_weights(np.array([1.0, 0.0]), bounds))
    assert np.isfinite(weightings).all()
    assert (weightings > 0).all()


@pytest.mark.parametrize(
    ("goal", "name"),
    [
        ({"budget": 9.0, "min_recall": {0: 0.9}}, "min_recall 0"),
        ({"max_loss": {0: 0.1}}, "max_loss 0"),
    ],
)
def test_a_recall_that_no_validation_row_measures_is_not_promised(goal, name):
    record = draw_record(0, n=400)
    frontier = make_frontier(record.take(record.exit_answers.truth == 1), None)
    with pytest.raises(InputError, match=f"{name}: no validation row has this class"):
        frontier.at(**goal)
    # a class that is never answered has no wrong answers
    assert frontier.at(budget=9.0, min_precision={1: 0.9}).recall[0] is None


@pytest.mark.parametrize(
    ("classes", "key"), [((0.0, 1.0), "1"), ((False, True), "true"), ((3, 1), 1.0), (("a", "1"), 1)]
)
def test_settings_by_class_name_a_class_by_its_text_or_number(classes, key):
    assert values_by_class("min_recall", {key: 0.5}, classes, 0.0, 1.0) == (None, 0.5)
    with pytest.raises(InputError, match="there is no class 'True'; there are 0, 1, 2"):
        values_by_class("min_recall", {True: 0.5}, (0, 1, 2), 0.0, 1.0)


@pytest.mark.parametrize(
    ("max_loss", "message"),
    [
        ({2: 0.1}, "max_loss: there is no class '2'; there are 0, 1"),
        ({0: 1.5}, "max_loss: '0' has 1.5"),
        ({}, "max_loss: a dict needs a class"),
        ({None: 0.1}, "max_loss: a dict needs a class"),
        ({0: 0.1, None: -0.1}, "max_loss: the value of None .* is -0.1"),
        ({0: 0.1, None: "low"}, "max_loss: the value of None .* is 'low'"),
        (-0.1, "max_loss must be a number of at least 0, not -0.1"),
        ("1", "max_loss must be a number of at least 0, not '1'"),
    ],
)
def test_invalid_losses_by_class_are_refused(max_loss, message):
    record = draw_record(0, n=200)
    frontier = Frontier.from_points(
        [record.measure((0.5, 0.5))], reference_accuracy=0.9, classes=(0, 1)
    )
    with pytest.raises(InputError, match=message):
        frontier.at(max_loss=max_loss)
    with pytest.raises(InputError, match="offload_rate must be a number of at least 0, not nan"):
        frontier.at(offload_rate=np.nan)
    with pytest.raises(InputError, match="leave out the key None"):
        frontier.at(max_loss={0: 0.1, None: 0.1}, budget=5.0)
    with pytest.raises(InputError, match=r"min_recall: give a dict by class, not 0\.9"):
        frontier.at(budget=5.0, min_recall=0.9)
