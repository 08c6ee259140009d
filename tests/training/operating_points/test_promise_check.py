"""Test the check of promises on unseen rows: kept, missed by chance or broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.promise_check import (
    CheckedBound,
    MeasuredFigure,
    PromiseCheck,
    UnseenRows,
    undetected_classes,
)
from gatewise_training.operating_points.risk_tests import exact_interval


def make_unseen_rows(n: int, n_lost: int, *, n_groups: int | None = None) -> UnseenRows:
    """Make rows on which only the system is wrong, and only on the first `n_lost`."""
    truth = np.arange(n) % 2
    answers = np.where(np.arange(n) < n_lost, 1 - truth, truth)
    splitter = (
        RowSplitter(n) if n_groups is None else RowSplitter.from_arrays(n, np.arange(n) % n_groups)
    )
    ones = np.ones(n)
    return UnseenRows(truth, answers, truth, ones, np.zeros(n, bool), ones, splitter)


def check_loss(rows: UnseenRows, bound: float, expected_accuracy: float = 0.9) -> PromiseCheck:
    every_row = np.ones(len(rows.truth), bool)
    loss_bound = CheckedBound("loss of accuracy", bound, True, rows.loss_on(every_row))
    has_groups = rows.splitter.groups is not None
    return PromiseCheck(
        loss_bound.promise,
        (loss_bound,),
        rows.accuracy,
        expected_accuracy,
        len(rows.truth),
        None,
        has_groups,
    )


@pytest.mark.parametrize(
    ("n", "n_lost", "verdict", "phrase"),
    [
        (4000, 4, "kept", "kept, with the whole interval"),
        (400, 2, "kept", "do not rule out that new rows break it"),
        (400, 6, "missed by chance", "not kept on these rows"),
        (1000, 40, "broken", "by more than chance explains"),
    ],
)
def test_the_report_states_whether_a_loss_is_kept_missed_or_broken(n, n_lost, verdict, phrase):
    promise_check = check_loss(make_unseen_rows(n, n_lost), 0.01)
    assert promise_check.verdict == verdict
    assert phrase in promise_check.lines()[-2]
    assert promise_check.lines()[0].startswith("promised: a loss of accuracy of at most 0.01")
    assert ("--slack" in promise_check.lines()[-1]) == (verdict != "kept")


def test_the_advice_about_a_broken_budget_is_a_smaller_one():
    rows = make_unseen_rows(400, 6)
    budget = CheckedBound("mean cost", 9.8, True, MeasuredFigure(13.1, 11.0, 15.2))
    promise_check = replace(check_loss(rows, 0.01), goal=budget.promise, bounds=(budget,))
    assert "reached on 400 rows held out: mean cost 13.1000 (95 %: 11.0" in promise_check.lines()[1]
    assert "give a smaller bound" in promise_check.lines()[-1]
    assert "--slack" not in promise_check.lines()[-1]


def test_figures_are_reported_as_intervals_before_their_values():
    line = check_loss(make_unseen_rows(7, 2), 0.01).lines()[1]
    assert "reached on 7 rows held out: loss of accuracy -0." in line
    assert line.endswith("(on these rows 0.286)")
    assert make_unseen_rows(7, 2).accuracy.text(7) == "0.29 to 0.96 (on these rows 0.714)"


def test_intervals_are_wider_if_groups_lose_differently():
    ungrouped_loss = check_loss(make_unseen_rows(1000, 40), 0.01).bounds[0].measured
    grouped_loss = check_loss(make_unseen_rows(1000, 40, n_groups=5), 0.01).bounds[0].measured
    assert grouped_loss.value == ungrouped_loss.value
    assert grouped_loss.high - grouped_loss.low < 0.1  # all groups lose equally
    uneven_rows = make_unseen_rows(1000, 40)._replace(
        splitter=RowSplitter.from_arrays(1000, np.arange(1000) // 200)
    )
    uneven_loss = uneven_rows.loss_on(np.ones(1000, bool))
    assert uneven_loss.low < 0 < ungrouped_loss.low < ungrouped_loss.high < uneven_loss.high


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize(
    ("splitter", "weights", "n_units"),
    [
        (RowSplitter(60, groups=np.repeat([0, 1, 2], 20)), np.ones(60), 3),
        (RowSplitter(60, time=np.arange(60)), np.ones(60), 60),
        (RowSplitter(60), np.repeat([1.0, 3.0], 30), 48),  # 120^2 / 300
    ],
    ids=["groups", "times", "weights"],
)
def test_intervals_of_rows_that_all_agree_are_those_of_their_units(
    splitter, weights, n_units, share
):
    figure = MeasuredFigure.share(np.full(60, bool(share)), weights, splitter)
    assert figure == (share, *exact_interval(int(share * n_units), n_units))


def test_no_loss_in_few_groups_is_no_certainty():
    rows = make_unseen_rows(60, 0, n_groups=3)
    loss = rows.loss_on(np.ones(60, bool))
    assert loss.value == 0.0
    assert -loss.low == pytest.approx(1.96 / 5, abs=1e-4)  # sqrt(1) / (3 groups + 2)
    assert loss.high == -loss.low
    assert check_loss(rows, 0.01).lines()[-2] != "kept, with the whole interval"


def test_intervals_of_a_loss_have_their_coverage():
    rng = np.random.default_rng(0)
    n_covered = 0
    for _ in range(400):
        losses = rng.choice([1.0, 0.0, -1.0], size=150, p=[0.05, 0.93, 0.02])
        loss = MeasuredFigure.loss(losses, np.ones(150), RowSplitter(150))
        n_covered += loss.low <= 0.03 <= loss.high  # the mean 0.05 - 0.02 of a loss
    # 0.95 less two standard deviations of a share of 400 draws; intervals of few losses cover more
    assert 0.93 <= n_covered / 400 <= 0.99


def test_checks_report_rows_answered_worse_than_validation_rows():
    lines = check_loss(make_unseen_rows(1000, 40), 0.1, expected_accuracy=0.99).lines()
    assert any("lower than expected: 99.0 % on validation rows" in line for line in lines)
    lines = check_loss(make_unseen_rows(4000, 40), 0.1, expected_accuracy=0.999).lines()
    assert lines[-2:] == [
        "kept, with the whole interval",
        "what to do: compare these rows with the training rows, to see why accuracy falls",
    ]


def test_all_classes_without_recall_are_named():
    # None: no rows of the class
    assert undetected_classes((0.0, 0.5, None, 0.0), ("a", "b", "c", "d")) == ["a", "d"]


def test_bounds_that_validation_rows_miss_are_not_missed_by_chance():
    few_rows = MeasuredFigure(0.5, 0.15, 0.85)
    bounds = tuple(
        CheckedBound(f"recall of {label}", 0.7, False, few_rows, expected_recall)
        for label, expected_recall in (("fault", 0.68), ("wear", 0.6))
    )
    assert [bound.verdict for bound in bounds] == ["broken", "broken"]
    assert bounds[0]._replace(expected=0.72).verdict == "missed by chance"
    promise_check = replace(
        check_loss(make_unseen_rows(4000, 4), 0.01), goal=bounds[0].promise, bounds=bounds
    )
    promise, *_, verdict, advice = promise_check.lines()
    assert promise == (
        "promised: a recall of fault of at least 0.7 (0.6800 on validation rows), "
        "a recall of wear of at least 0.7 (0.6000 on validation rows)"
    )
    assert verdict == (
        "not kept: the recall of fault and the recall of wear break their bounds, on validation "
        "rows as well"
    )
    assert "of the class" in advice
    assert "looser bound" in advice
    loss = CheckedBound("loss of accuracy", 0.01, True, MeasuredFigure(0.02, 0.0, 0.04), 0.0376)
    *_, verdict, advice = replace(promise_check, bounds=(loss,)).lines()
    assert verdict == "not kept: the loss of accuracy breaks its bound, on validation rows as well"
    assert "more bytes" in advice


def test_the_advice_names_classes_that_are_never_found():
    promise_check = check_loss(make_unseen_rows(4000, 4), 0.01)
    assert promise_check.lines()[-1] == "what to do: nothing"
    advice = replace(promise_check, undetected_classes=("fault",)).lines()[-1]
    assert advice.startswith("what to do: train on more rows of fault, never found on these rows")
