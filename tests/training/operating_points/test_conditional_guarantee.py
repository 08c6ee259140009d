"""Promises about what is answered up to each exit: how often they hold, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

from gatewise.errors import InputError
from gatewise_training import ConfidenceCascade
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.candidate_points import candidates, within_exits
from gatewise_training.operating_points.conditional_guarantee import (
    check_exit_rows,
    exits_pass,
)
from gatewise_training.operating_points.guarantee import certify, lost_rows
from tests.training.operating_points.test_guarantee import (
    MOST_VIOLATIONS,
    TIMES,
    frontier,
    promise,
    record,
)

ROWS = 1000


def loss_at_exits(pool, thresholds):
    """True loss of what is answered up to each exit, by hand."""
    exits = pool.exits(thresholds)
    found = []
    for stage in range(pool.n_stages):
        so_far = exits <= stage
        if so_far.any():
            answered = pool.correct[exits[so_far], np.flatnonzero(so_far)]
            found.append(float((pool.correct[-1][so_far] - answered).mean()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"max_loss": 0.02}, {"offload_rate": 0.8}], ids=str)
def test_a_bound_at_every_exit_holds_as_often_as_it_says(beside):
    bound = 0.05
    wanted = promise(by_exit=bound, **beside)
    tuning, pool = record(0, 1500), record(1, 40_000)
    order = candidates(tuning, frontier(tuning), wanted, rows=ROWS)[::4]
    rng = np.random.default_rng(0)
    truth, worst, sent = {}, [], []
    for _ in range(TIMES):
        found = certify(pool.rows(rng.integers(0, len(pool.weights), ROWS)), order, wanted)
        if found is None:
            continue
        key = found.thresholds
        if key not in truth:
            truth[key] = max(loss_at_exits(pool, key), default=0.0)
        worst.append(truth[key])
        sent.append(found.offload_rate)
    assert len(worst) > 0.9 * TIMES
    assert np.mean(np.array(worst) > bound) <= MOST_VIOLATIONS
    assert np.mean(sent) < 0.95  # and it is no empty promise


def test_the_loss_of_all_rows_does_not_show_what_an_exit_loses():
    """A first stage that loses a tenth of few rows passes for all rows, and not at its exit."""
    plain = record(1, 20_000)
    first = (float(np.quantile(plain.scores[0], 0.9)), None, None)
    exits = plain.exits(first)
    correct = np.ones_like(plain.correct)
    correct[0] = np.random.default_rng(0).random(20_000) > 0.1
    pool = replace(plain, correct=correct)
    lost = lost_rows(pool, pool, exits)
    so_far = pool.answered_so_far(first, exits)
    assert lost.mean() < 0.02 < lost[exits == 0].mean() < 0.2
    assert exits_pass(0.2, so_far, lost, pool.splitter, 0.05)
    assert not exits_pass(0.02, so_far, lost, pool.splitter, 0.05)


def test_a_certificate_says_what_is_left_unused_at_each_exit():
    tuning, pool = record(0, 1500), record(1, 5000)
    wanted = promise(max_loss=0.03, by_exit=0.06)
    found = certify(pool, candidates(tuning, frontier(tuning), wanted, rows=5000), wanted)
    terms = found.guarantee
    assert terms["max_exit_loss"] == 0.06
    assert terms["method"].endswith("by exit betting")
    losses = loss_at_exits(pool, found.thresholds)
    left = [value for name, value in terms.items() if name.startswith("unused max_exit_loss")]
    assert left == [pytest.approx(1 - loss / 0.06, abs=1e-4) for loss in losses]


def test_exits_that_too_few_rows_leave_by_are_passed():
    pool = record(1, 2000)
    rare = float(np.quantile(pool.scores[0], 0.995))
    often = float(np.quantile(pool.scores[1], 0.9))
    right = pool.correct[-1]
    found = within_exits(0.05, pool, (rare, often, None), right, 1000.0, 0.05)
    assert found == (None, often, None)
    assert within_exits(0.05, pool, (rare, often, None), right, 1e6, 0.05) == (rare, often, None)


@pytest.mark.parametrize("bound", [0.01, 0.03, 0.1])
def test_raised_thresholds_keep_the_bound_and_no_more(bound):
    pool = record(2, 5000)
    low = tuple(float(np.quantile(scores, 0.2)) for scores in pool.scores)
    assert max(loss_at_exits(pool, low)) > bound
    found = within_exits(bound, pool, low, pool.correct[-1], 5000.0, 0.05)
    losses = loss_at_exits(pool, found)
    assert max(losses) <= bound
    assert losses[-1] > 0.9 * bound
    assert all(t is None or t >= before for t, before in zip(found, low, strict=True))


@pytest.mark.parametrize(
    ("bound", "splitter", "says"),
    [
        (0.0, RowSplitter(100), "max_exit_loss=0 cannot be certified, only one above it"),
        (0.01, RowSplitter(100), "takes 299 calibration rows, and there are 100"),
        (
            0.01,
            RowSplitter(400, groups=np.arange(400) % 20),
            "takes 299 calibration groups, and there are 20",
        ),
    ],
)
def test_what_no_rows_can_show_is_refused(bound, splitter, says):
    with pytest.raises(InputError, match=says):
        check_exit_rows(bound, splitter, 0.05)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), (y >= 5).astype(int)


@pytest.mark.slow
def test_a_fitted_cascade_keeps_its_promise_at_every_exit(digits):
    X, y = digits
    f0 = ExtraTreesClassifier(40, random_state=0)
    settings = {"low_cost_model": "linear", "n_subsets": 4, "guarantee": 0.9, "random_state": 0}
    plain = ConfidenceCascade(f0, max_loss=0.1, **settings).fit(X[:1200], y[:1200])
    system = ConfidenceCascade(f0, max_loss=0.1, max_exit_loss=0.06, **settings)
    system.fit(X[:1200], y[:1200])
    terms = system.operating_point_.guarantee
    assert (terms["max_exit_loss"], terms["bound"]) == (0.06, 0.1)
    assert "max_exit_loss=0.06" in system.summary()
    assert system.cost(X[1200:]).mean() > plain.cost(X[1200:]).mean()  # a promise has its price
    moved = system.at(max_loss=0.2)
    assert moved.operating_point_.guarantee["max_exit_loss"] == 0.06


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_exit_loss": 0.1}, "give guarantee="),
        ({"max_exit_loss": 0.001, "guarantee": 0.95}, "takes 2995 calibration rows"),
        ({"max_exit_loss": -1.0, "guarantee": 0.95}, "max_exit_loss"),
    ],
)
def test_a_promise_that_cannot_be_made_is_refused_before_the_fit(digits, settings, says):
    with pytest.raises(ValueError, match=says):
        ConfidenceCascade(**settings).fit(digits[0][:300], digits[1][:300])
