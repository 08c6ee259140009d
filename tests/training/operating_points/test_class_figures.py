from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics
from sklearn.utils.class_weight import compute_class_weight

from gatewise.decision import ALWAYS_STOP, midway
from gatewise.errors import InputError
from gatewise_training.operating_points.candidate_points import CalibrationRecords, candidates
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    ExitAnswers,
    class_weights,
)
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points, tune


def rare_record(seed, n=3000, share=0.04):
    """Two stages and a cloud on rows of which few are of class 0, the class that is missed most."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(n) >= share).astype(np.int64)
    signal = np.where(truth == 1, 1.0, -1.0)
    margins = [signal * skill + 0.6 + rng.normal(size=n) for skill in (0.8, 1.6)]
    cloud = signal * 2.2 + rng.normal(size=n)
    labels_by_exit = np.stack([(m > 0).astype(np.int64) for m in (*margins, cloud)])
    chances = [
        np.column_stack([1 - p, p])
        for m in (*margins, cloud)
        if (p := 1 / (1 + np.exp(-m))) is not None
    ]
    return CascadeRecord(
        scores=np.abs(np.stack(margins)).astype(np.float32),
        correct=(labels_by_exit == truth).astype(float),
        exit_costs=np.array([1.0, 3.0, 8.0]),
        weights=np.ones(n),
        agrees=labels_by_exit == labels_by_exit[-1],
        answers=ExitAnswers.scored(truth, labels_by_exit, 2, chances),
    )


BOUNDS = ClassBounds.from_mappings((0, 1), {0: 0.8})


@pytest.mark.parametrize("n_classes", [2, 4])
def test_figures_are_those_of_scikit_learn(n_classes):
    rng = np.random.default_rng(0)
    n = 400
    truth = rng.integers(0, n_classes, n)
    weights = rng.uniform(0.5, 2, n)
    chances = [rng.dirichlet(np.ones(n_classes), n) for _ in range(3)]
    labels_by_exit = np.stack([c.argmax(axis=1) for c in chances])
    answers = ExitAnswers.scored(truth, labels_by_exit, n_classes, chances)
    exits = rng.integers(0, 3, n)
    found = answers.figures(exits, weights)
    mixed, p = labels_by_exit[exits, np.arange(n)], np.stack(chances)[exits, np.arange(n)]
    how = {"average": None, "sample_weight": weights}
    assert found["recall"] == pytest.approx(metrics.recall_score(truth, mixed, **how))
    assert found["precision"] == pytest.approx(metrics.precision_score(truth, mixed, **how))
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(truth, mixed, sample_weight=weights)
    )
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, p, sample_weight=weights))
    assert found["brier_score"] == pytest.approx(
        metrics.brier_score_loss(truth, p[:, 1] if n_classes == 2 else p, sample_weight=weights)
    )


def test_a_class_without_rows_or_answers_has_no_share():
    truth, labels_by_exit = np.array([0, 0, 1]), np.array([[1, 1, 1]])
    answers = ExitAnswers.scored(truth, labels_by_exit, 3, [None])
    found = answers.figures(np.zeros(3, np.int64), np.ones(3))
    assert found["recall"] == (0.0, 1.0, None)
    assert found["precision"] == (None, pytest.approx(1 / 3), None)
    assert found["log_loss"] is None


def test_balanced_weights_are_scikit_learns():
    y = np.repeat([0, 1, 2], [50, 30, 20])
    labels = np.array(["a", "b", "c"])
    assert class_weights("balanced", y, labels) == pytest.approx(
        compute_class_weight("balanced", classes=labels, y=labels[y])
    )
    assert class_weights({"c": 5}, y, labels).tolist() == [1, 1, 5]


def test_all_errors_of_bounds_are_listed_together():
    with pytest.raises(InputError, match=r"no class 'x'; there are ok, 2.*'ok' has 1.5"):
        ClassBounds.from_mappings(("ok", 2), {"x": 0.5, "ok": 1.5})
    assert ClassBounds.from_mappings(("ok", 2), {"2": 0.5}).min_recall == (None, 0.5)
    assert not ClassBounds.from_mappings(("ok", 2), {"ok": 0})


def test_one_stage_is_tuned_exactly_under_class_weights():
    r = rare_record(3, n=80, share=0.2)
    r = replace(
        r, scores=r.scores[:1], correct=r.correct[[0, 2]], exit_costs=r.exit_costs[[0, 2]],
        agrees=None, answers=None, class_weights=np.where(r.answers.truth == 0, 6.0, 1.0),
    )  # fmt: skip
    cuts = np.unique(r.scores[0])
    options = [None, ALWAYS_STOP, *(midway(a, b) for a, b in pairwise(cuts.tolist()))]
    for lam in (0.01, 0.03, 0.1):

        def net_accuracy(setting, lam=lam):
            point = r.measure(setting)
            assert point.weighted_accuracy == point.merit
            return point.merit - lam * point.cost

        (setting,) = tune(r, np.array([lam]))
        assert net_accuracy(setting) == pytest.approx(
            max(net_accuracy((t,)) for t in options), abs=1e-12
        )


def frontier(record, bounds):
    emphasis = [np.array([w, 1.0]) for w in (3.0, 24.0)]
    points = frontier_points(record, n_lams=25, emphases=emphasis)
    curve = Frontier.from_points(
        points, reference_accuracy=record.reference_accuracy(), classes=(0, 1),
        class_rows=record.answers.class_rows(),
    )  # fmt: skip
    return curve.with_others(points, bounds)


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
def test_certified_points_keep_all_bounds_as_often_as_promised(goal, bounds, weight):
    def weighted(record):
        if weight is None:
            return record
        return replace(record, class_weights=np.where(record.answers.truth == 0, weight, 1.0))

    tuning, pool = weighted(rare_record(0, 4000)), weighted(rare_record(1, 40_000))
    curve = frontier(tuning, bounds)
    promise = Promise.from_bounds(0.9, by_class=bounds, **goal)
    order = candidates(tuning, (*curve.points, *curve.others), promise, rows=3000)[::4]
    rng, times, broken, certified = np.random.default_rng(0), 80, 0, 0
    for _ in range(times):
        point = certify(pool.rows(rng.integers(0, 40_000, 3000)), order, promise)
        if point is None:
            continue
        certified += 1
        true = pool.measure(point.thresholds)
        keeps_bound = bounds is None or true.recall[0] >= 0.8
        if "budget" in goal:
            keeps_bound &= true.cost <= goal["budget"]
        else:
            keeps_bound &= pool.reference_accuracy() - true.merit <= goal["max_loss"]
        broken += not keeps_bound
    assert certified > 0.8 * times
    assert broken <= 0.1 * times + 2 * (times * 0.09) ** 0.5
    if bounds is not None:
        assert point.guarantee["min_recall 0"] == 0.8
        assert "exact binomial" in point.guarantee["method"]


def losses_by_hand(record, exits):
    """Recall of the cloud less that of the answers, by class."""
    truth, labels_by_exit = record.answers.truth, record.answers.labels
    rows = np.arange(len(truth))
    return [
        float(
            np.mean(labels_by_exit[-1][truth == c] == c)
            - np.mean(labels_by_exit[exits, rows][truth == c] == c)
        )
        for c in (0, 1)
    ]


@pytest.mark.parametrize("losses", [{0: 0.1}, {0: 0.05, 1: 0.01}, {0: 0.2, None: 0.02}])
def test_the_cheapest_point_that_keeps_losses_by_class_is_picked(losses):
    record = rare_record(3)
    exits = [record.exits(s) for s in tune(record, np.geomspace(1e-4, 1, 30))]
    points = [record.measure(s) for s in tune(record, np.geomspace(1e-4, 1, 30))]
    reference = record.answers.figures(np.full(3000, 2), record.weights)["recall"]
    merit = float(record.correct[-1].mean())
    frontier = Frontier.from_points(
        points,
        reference_accuracy=merit,
        classes=(0, 1),
        class_rows=record.answers.class_rows(),
        reference_recall=reference,
    )
    on_curve = set(frontier.points)
    frontier = replace(frontier, others=tuple(p for p in points if p not in on_curve))
    kept_points = [
        p.cost
        for p, out in zip(points, exits, strict=True)
        if all(losses_by_hand(record, out)[c] <= losses.get(c, 1) + 1e-9 for c in (0, 1))
        and merit - p.accuracy <= losses.get(None, 1) + 1e-9
    ]
    assert 0 < len(kept_points) < len(points)
    assert frontier.at(max_loss=losses).cost == pytest.approx(min(kept_points))


def test_losses_are_numbers_of_any_kind_and_a_refusal_names_them_not_recalls():
    record = rare_record(0)
    last = np.full(len(record.weights), record.n_stages)
    recall = record.answers.figures(last, record.weights)["recall"]
    low = record.measure((ALWAYS_STOP, None))
    frontier = Frontier.from_points(
        [low], reference_accuracy=0.9, classes=(0, 1), reference_recall=recall
    )
    frontier = replace(frontier, class_rows=record.answers.class_rows())
    assert frontier.at(max_loss={0: np.float32(0.9), 1: np.int64(1)}) == low
    with pytest.raises(InputError, match=r"no operating point keeps max_loss 0=0.01:"):
        frontier.at(max_loss={0: 0.01})


@pytest.mark.slow
def test_losses_by_class_are_certified_as_promised():
    """A pool is the truth; of certificates on rows drawn from it at most 5 % may break a bound."""
    losses = {0: 0.06, 1: 0.01}
    bounds = ClassBounds.from_mappings((0, 1), None, None, losses)
    promise = Promise.from_bounds(0.95, by_class=bounds, max_loss=1.0)
    pool, tuning = rare_record(5, n=40_000, share=0.1), rare_record(6, share=0.1)
    points = [tuning.measure(s) for s in tune(tuning, np.geomspace(1e-4, 1, 30))]
    order = candidates(tuning, points, promise, rows=4000)
    rng = np.random.default_rng(0)
    of_class = [np.flatnonzero(pool.answers.truth == c) for c in (0, 1)]
    broken, n_certified, draws = np.zeros(2), 0, 200
    for _ in range(draws):
        # a test of a class is given how many rows it has
        drawn = [rng.choice(of_class[0], 400), rng.choice(of_class[1], 3600)]
        point = certify(pool.rows(np.concatenate(drawn)), order, promise)
        if point is None:
            continue
        n_certified += 1
        terms = point.guarantee
        assert terms["max_loss 0"] == 0.06
        assert terms["method"] == "certain; by class exact paired difference"
        assert terms["unused max_loss 0"] > 0
        true = losses_by_hand(pool, pool.exits(point.thresholds))
        broken += [true[c] > losses[c] for c in (0, 1)]
    assert n_certified > draws / 2
    assert broken.max() / draws <= 0.05 + 2 * (0.05 * 0.95 / draws) ** 0.5


def test_losses_by_class_that_no_rows_can_certify_are_refused_with_the_rows_needed():
    record = rare_record(7, n=1000, share=0.03)
    frontier = Frontier.from_points(
        [record.measure((0.5, 0.5))], reference_accuracy=0.9, classes=(0, 1)
    )
    bounds = ClassBounds.from_mappings((0, 1), None, None, {0: 0.05})
    rows = record.answers.class_rows()[0]
    calibration = CalibrationRecords((record,), (record,), 0.95)
    with pytest.raises(InputError, match=rf"takes 59 .* and there are {rows};"):
        calibration.certify(frontier, bounds, max_loss=1.0)


def test_a_class_without_calibration_rows_leaves_no_part_of_its_loss_unused():
    rows, bounds = rare_record(8, n=400), ClassBounds.from_mappings((0, 1), max_loss={0: 1, 1: 0.5})
    rows = rows.rows(rows.answers.truth == 1)
    promise = Promise.from_bounds(0.95, by_class=bounds, max_loss=1.0)
    terms = certify(rows, [rows.measure((0.5, 0.5))], promise).guarantee
    assert terms["max_loss 0"] == 1
    assert "unused max_loss 0" not in terms  # it was NaN, which JSON does not have
    assert terms["unused max_loss 1"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_invalid_losses_by_class_are_refused(given, message):
    record = rare_record(0, n=200)
    frontier = Frontier.from_points(
        [record.measure((0.5, 0.5))], reference_accuracy=0.9, classes=(0, 1)
    )
    with pytest.raises(InputError, match=message):
        frontier.at(max_loss=given)
    with pytest.raises(InputError, match="offload_rate must be a number of at least 0, not nan"):
        frontier.at(offload_rate=np.nan)
    with pytest.raises(InputError, match="leave out the key None"):
        frontier.at(max_loss={0: 0.1, None: 0.1}, budget=5.0)
    with pytest.raises(InputError, match=r"min_recall: give a dict by class, not 0\.9"):
        frontier.at(budget=5.0, min_recall=0.9)
