"""Promises on rows that no choice has seen: kept, missed by chance, or broken."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.promise_check import (
    CheckedBound,
    MeasuredFigure,
    PromiseCheck,
    UnseenRows,
    never_found,
)


def unseen(n: int, n_lost: int, *, groups: int | None = None) -> UnseenRows:
    """Rows of two classes whose system alone is wrong on the first `n_lost`."""
    truth = np.arange(n) % 2
    answers = np.where(np.arange(n) < n_lost, 1 - truth, truth)
    splitter = RowSplitter(n) if groups is None else RowSplitter.checked(n, np.arange(n) % groups)
    ones = np.ones(n)
    return UnseenRows(truth, answers, truth, ones, np.zeros(n, bool), ones, splitter)


def check(rows: UnseenRows, bound: float, expected: float = 0.9) -> PromiseCheck:
    every_row = np.ones(len(rows.truth), bool)
    loss = CheckedBound("loss of accuracy", bound, True, rows.lost(every_row))
    has_groups = rows.splitter.groups is not None
    return PromiseCheck(
        loss.promise, (loss,), rows.accuracy, expected, len(rows.truth), None, has_groups
    )


@pytest.mark.parametrize(
    ("n", "n_lost", "verdict", "words"),
    [
        (4000, 4, "kept", "kept, with the whole interval"),
        (400, 2, "kept", "do not rule out that new rows break it"),
        (400, 6, "missed by chance", "not kept on these rows"),
        (1000, 40, "broken", "by more than chance explains"),
    ],
)
def test_a_loss_is_kept_missed_or_broken_in_plain_words(n, n_lost, verdict, words):
    made = check(unseen(n, n_lost), 0.01)
    assert made.verdict == verdict
    assert words in made.lines()[-2]
    assert made.lines()[0].startswith("promised: a loss of accuracy of at most 0.01")
    assert ("--slack" in made.lines()[-1]) == (verdict != "kept")


def test_figures_on_few_rows_are_intervals_first():
    text = check(unseen(7, 2), 0.01).lines()[1]
    assert "reached on 7 rows held out: loss of accuracy -0." in text
    assert text.endswith("(on these rows 0.286)")
    assert unseen(7, 2).accuracy.text(7) == "0.29 to 0.96 (on these rows 0.714)"


def test_rows_of_one_group_count_as_one():
    alone = check(unseen(1000, 40), 0.01).bounds[0].measured
    grouped = check(unseen(1000, 40, groups=5), 0.01).bounds[0].measured
    assert grouped.value == alone.value
    assert grouped.high - grouped.low < 0.1  # groups that lose alike
    uneven = unseen(1000, 40)._replace(splitter=RowSplitter.checked(1000, np.arange(1000) // 200))
    wide = uneven.lost(np.ones(1000, bool))
    assert wide.low < 0 < alone.low < alone.high < wide.high


def test_an_interval_of_a_loss_covers_it():
    rng = np.random.default_rng(0)
    n_covered = 0
    for _ in range(400):
        losses = rng.choice([1.0, 0.0, -1.0], size=150, p=[0.05, 0.93, 0.02])
        loss = MeasuredFigure.loss(losses, np.ones(150), RowSplitter(150))
        n_covered += loss.low <= 0.03 <= loss.high
    assert 0.93 <= n_covered / 400 <= 0.99


def test_checks_report_rows_answered_worse_than_validation_rows():
    lines = check(unseen(1000, 40), 0.1, expected=0.99).lines()
    assert any("lower than promised: 99.0 % on validation rows" in line for line in lines)


def test_every_class_that_is_never_found_is_named():
    assert never_found((0.0, 0.5, None, 0.0), ("a", "b", "c", "d")) == ["a", "d"]
