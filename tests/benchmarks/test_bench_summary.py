"""Tests of figures from cells: choice of points, Holm's rule, wins and losses."""

from __future__ import annotations

import pytest

from benchmarks.comparison import summary
from benchmarks.comparison.record import Point
from benchmarks.data import problems


def make_point_row(*, val_accuracy, accuracy, cost, nbytes=0):
    """Make the row of a point in a cell."""
    return [val_accuracy, cost, accuracy, cost, cost, 0.0, nbytes]


CONSTANT_MODEL = make_point_row(val_accuracy=0.5, accuracy=0.5, cost=0)


def make_cell(seed, *points):
    """Make a cell of one fold."""
    fold = {"n_test": 1000, "points": list(points), "own": None, "seconds": 1.0, "about": {}}
    return {"seed": seed, "code": "c", "folds": [fold]}


@pytest.fixture
def summary_figures():
    """Figures of three methods with five seeds."""
    problem = problems.get("breast_cancer")  # 30 features at price 1
    accurate_cells = [
        make_cell(
            seed,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.95, accuracy=0.94, cost=3),
            make_point_row(val_accuracy=0.96, accuracy=0.95, cost=6),
        )
        for seed in range(5)
    ]
    costly_cells = [
        make_cell(
            seed,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.955, accuracy=0.93, cost=15, nbytes=2**20),
        )
        for seed in range(5)
    ]
    weak_cells = [
        make_cell(seed, CONSTANT_MODEL, make_point_row(val_accuracy=0.7, accuracy=0.99, cost=3))
        for seed in range(5)
    ]
    return summary.summarise(
        problem, {"staged": accurate_cells, "costly": costly_cells, "weak": weak_cells}
    )


def test_cut_belongs_to_the_cheapest_point_within_one_percent(summary_figures):
    assert summary_figures["top_method"] == "staged"
    assert summary_figures["top_accuracy"] == pytest.approx(0.99)  # of any method, on test
    figures = summary_figures["methods"]["staged"]["within_1"]
    assert figures["cut"]["mean"] == pytest.approx(1 - 3 / 30)  # all features cost 30
    assert figures["loss"]["mean"] == pytest.approx(0.99 - 0.94)
    # the first point is within 1 % of 0.96, but not with the slack of 0.2 %
    slack_figures = summary_figures["methods"]["staged"]["within_1_slack"]
    assert slack_figures["cut"]["mean"] == pytest.approx(1 - 6 / 30)


def test_method_without_an_accurate_point_falls_back_to_the_top_method(summary_figures):
    figures = summary_figures["methods"]["weak"]["within_1"]
    assert figures["reached"]["mean"] == 0
    assert figures["cut"]["mean"] == 0
    assert figures["loss"]["mean"] == pytest.approx(0.99 - 0.95)  # against the best test accuracy


def test_byte_bounds_exclude_large_models(summary_figures):
    costly_figures = summary_figures["methods"]["costly"]
    assert costly_figures["within_1_1024_kb"]["cut"]["mean"] == pytest.approx(0.5)
    assert costly_figures["within_1_64_kb"]["reached"]["mean"] == 0


def test_byte_bound_uses_the_fit_within_this_bound():
    large = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.96, accuracy=0.95, cost=6, nbytes=2**17),
        )
    ]
    small = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.955, accuracy=0.94, cost=9, nbytes=2**15),
        )
    ]
    peer = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.951, accuracy=0.93, cost=12, nbytes=2**14),
        )
    ]
    summary_figures = summary.summarise(
        problems.get("breast_cancer"), {"staged": large, "staged-64kb": small, "costly": peer}
    )
    bounded_figures = summary_figures["methods"]["staged"]["within_1_64_kb"]
    assert bounded_figures["cut"]["mean"] == pytest.approx(1 - 9 / 30)
    assert summary_figures["methods"]["staged"]["within_1_8_kb"]["reached"]["mean"] == 0
    comparisons = summary.compare(summary_figures, "staged", 1000, accuracies="at_budgets_64_kb")
    assert list(comparisons) == ["costly"]
    assert max(comparisons["costly"]["difference"]) == pytest.approx(0.94 - 0.5)


def test_budget_chooses_on_validation_and_reports_test_rows(summary_figures):
    points = [Point(0.5, 0, 0.5, 0, 0), Point(0.7, 3, 0.99, 3, 3), Point(0.9, 4, 0.1, 9, 9)]
    assert summary.pick_budget(points, 3.5).accuracy == 0.99
    assert summary.pick_budget(points, 4).accuracy == 0.1
    rows = summary_figures["methods"]["staged"]["at_budgets"]
    assert rows[0]["accuracy"]["mean"] == 0.5
    assert rows[-1] == {
        "accuracy": {"mean": pytest.approx(0.95), "error": pytest.approx(0)},
        "cost": {"mean": pytest.approx(6), "error": pytest.approx(0)},
        "of_seeds": [0.95] * 5,
    }


def test_compare_counts_wins_ties_and_losses(summary_figures):
    comparisons = summary.compare(summary_figures, "staged", n_test=1000)
    budgets = summary_figures["budgets"]
    n_budgets_below = sum(
        budget < 3 for budget in budgets
    )  # where both have only the constant model
    assert comparisons["weak"]["plain"] == {
        "wins": 0,
        "ties": n_budgets_below,
        "losses": 12 - n_budgets_below,
    }
    assert comparisons["weak"]["significant"]["losses"] == 12 - n_budgets_below
    assert comparisons["costly"]["plain"]["losses"] == 0
    assert comparisons["costly"]["difference"][-1] == pytest.approx(0.02)


def test_holm_adjusts_p_values_in_ascending_order():
    # Times 3, 2 and 1 in ascending order, and never below the one before.
    assert summary.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert summary.holm([0.6, 0.9]) == [1.0, 1.0]
