"""Tests of figures from cells: choice of points, Holm's rule, wins and losses."""

from __future__ import annotations

import pytest

from benchmarks.comparison import summary
from benchmarks.comparison.record import COLUMNS, Point
from benchmarks.data import problems


def make_point_row(*, val_accuracy, accuracy, cost, nbytes=0):
    """Make the row of a point in a cell, with equal costs and no offloads."""
    point = Point(
        val_accuracy=val_accuracy,
        val_cost=cost,
        accuracy=accuracy,
        cost=cost,
        nbytes=nbytes,
    )
    return [getattr(point, column) for column in COLUMNS]


#: The most frequent class, which every method has as a point without cost.
CONSTANT_MODEL = make_point_row(val_accuracy=0.5, accuracy=0.5, cost=0)


def make_cell(seed, *points):
    """Make a cell of one fold."""
    fold = {"n_test": 1000, "points": list(points), "own": None, "seconds": 1.0, "about": {}}
    return {"seed": seed, "code": "hash of the code", "folds": [fold]}


@pytest.fixture
def summary_figures():
    """Figures of three methods with five seeds.

    "weak" has a low accuracy on validation rows and the highest one on test rows, so that a rule
    that looked at test rows would choose its point.
    """
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
    # Validation accuracy 0.95 is within 1 % of 0.96, but not with the slack of 0.2 %.
    slack_figures = summary_figures["methods"]["staged"]["within_1_slack"]
    assert slack_figures["cut"]["mean"] == pytest.approx(1 - 6 / 30)


def test_method_without_an_accurate_point_falls_back_to_the_top_method(summary_figures):
    figures = summary_figures["methods"]["weak"]["within_1"]
    assert figures["reached"]["mean"] == 0
    assert figures["cut"]["mean"] == 0  # every instance has the full price
    # The highest test accuracy of any method, and that of the top method's best point.
    assert figures["loss"]["mean"] == pytest.approx(0.99 - 0.95)


def test_byte_bounds_exclude_large_models(summary_figures):
    costly_figures = summary_figures["methods"]["costly"]
    # Its model has 1024 KiB, and costs 15 of 30.
    assert costly_figures["within_1_1024_kb"]["cut"]["mean"] == pytest.approx(0.5)
    assert costly_figures["within_1_64_kb"]["reached"]["mean"] == 0


def test_byte_bound_uses_the_fit_within_this_bound():
    large_cells = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.96, accuracy=0.95, cost=6, nbytes=2**17),  # 128 KiB
        )
    ]
    small_cells = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.955, accuracy=0.94, cost=9, nbytes=2**15),  # 32 KiB
        )
    ]
    peer_cells = [
        make_cell(
            0,
            CONSTANT_MODEL,
            make_point_row(val_accuracy=0.951, accuracy=0.93, cost=12, nbytes=2**14),
        )
    ]
    summary_figures = summary.summarise(
        problems.get("breast_cancer"),
        {"staged": large_cells, "staged-64kb": small_cells, "costly": peer_cells},
    )
    bounded_figures = summary_figures["methods"]["staged"]["within_1_64_kb"]
    assert bounded_figures["cut"]["mean"] == pytest.approx(1 - 9 / 30)  # the cost of the 32 KiB
    assert summary_figures["methods"]["staged"]["within_1_8_kb"]["reached"]["mean"] == 0
    comparisons = summary.compare(summary_figures, "staged", 1000, accuracies="at_budgets_64_kb")
    assert list(comparisons) == ["costly"]  # and not the method's own fit for a bound
    # With a budget between 9 and 12 the peer has only the constant model, of accuracy 0.5.
    assert max(comparisons["costly"]["difference"]) == pytest.approx(0.94 - 0.5)


def test_budget_chooses_on_validation_and_reports_test_rows(summary_figures):
    # Accuracy and cost on validation rows, then accuracy and cost on test rows.
    points = [Point(0.5, 0, 0.5, 0), Point(0.7, 3, 0.99, 3), Point(0.9, 4, 0.1, 9)]
    assert summary.pick_budget(points, 3.5).accuracy == 0.99
    assert summary.pick_budget(points, 4).accuracy == 0.1
    budget_figures = summary_figures["methods"]["staged"]["at_budgets"]
    assert budget_figures[0]["accuracy"]["mean"] == 0.5  # of the constant model
    assert budget_figures[-1] == {
        "accuracy": {"mean": pytest.approx(0.95), "error": pytest.approx(0)},
        "cost": {"mean": pytest.approx(6), "error": pytest.approx(0)},
        "of_seeds": [0.95] * 5,
    }


def test_compare_counts_wins_ties_and_losses(summary_figures):
    comparisons = summary.compare(summary_figures, "staged", n_test=1000)
    budgets = summary_figures["budgets"]
    # With a budget below 3 both methods have only the constant model. Above, "weak" has the higher
    # test accuracy, 0.99, with the same difference for each seed.
    n_ties = sum(budget < 3 for budget in budgets)
    n_losses = len(budgets) - n_ties
    assert comparisons["weak"]["plain"] == {"wins": 0, "ties": n_ties, "losses": n_losses}
    assert comparisons["weak"]["significant"]["losses"] == n_losses
    assert comparisons["costly"]["plain"]["losses"] == 0
    assert comparisons["costly"]["difference"][-1] == pytest.approx(0.95 - 0.93)


def test_holm_adjusts_p_values_in_ascending_order():
    # In ascending order 3 * 0.01 = 0.03 and 2 * 0.03 = 0.06; 1 * 0.04 is raised to the 0.06 before.
    assert summary.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert summary.holm([0.6, 0.9]) == [1.0, 1.0]  # 2 * 0.6 is above 1
