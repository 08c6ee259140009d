"""Tests that the page of simpler systems lists only cells with significant leads."""

import pytest

from benchmarks.comparison.pages import simpler_page


def make_figures(cut, error, accuracies):
    """Make the figures of a method: its cost cut, its error, and an accuracy for each seed."""
    return {
        "seeds": [0, 1, 2],
        "within_1": {"cut": {"mean": cut, "error": error}, "loss": {"mean": 0.004, "error": 0.0}},
        "at_budgets": [{"of_seeds": accuracies}],
    }


def make_problem_figures(staged_figures, static_figures):
    """Make the figures of a problem of two methods and one budget."""
    return {"budgets": [3.0], "methods": {"staged": staged_figures, "static": static_figures}}


@pytest.mark.parametrize(
    ("static_figures", "cells"),
    [
        (make_figures(0.60, 0.01, [0.9, 0.9, 0.9]), ["saving"]),
        (make_figures(0.52, 0.02, [0.9, 0.9, 0.9]), []),  # the lead is below two standard errors
        (make_figures(0.50, 0.00, [0.92, 0.93, 0.94]), ["budget 3"]),
        # the spread over seeds is larger than the lead
        (make_figures(0.50, 0.00, [0.80, 0.90, 1.05]), []),
        (make_figures(0.50, 0.00, [0.9005, 0.9005, 0.9005]), []),  # the lead is too small
        (make_figures(0.10, 0.00, [0.7, 0.7, 0.7]), []),  # behind
    ],
)
def test_leads_are_larger_than_two_standard_errors(static_figures, cells):
    problem_figures = make_problem_figures(
        make_figures(0.50, 0.01, [0.9, 0.9, 0.9]), static_figures
    )
    comparisons = list(simpler_page.compare_cells("heart", problem_figures, ("static", "catboost")))
    assert [comparison.cell for comparison in comparisons if comparison.is_lead] == cells
    assert all(comparison.method == "static" for comparison in comparisons)


def test_cells_of_a_single_seed_are_neither_listed_nor_counted():
    ours = make_figures(0.50, None, [0.9]) | {"seeds": [0]}
    theirs = make_figures(0.60, None, [0.95]) | {"seeds": [0]}
    page = simpler_page.markdown({"heart": make_problem_figures(ours, theirs)})
    assert "1 of" not in page
    assert page.count("0 of 0 cells. A cell needs several seeds. Not among the figures: ") == 2
    assert "static" not in page


def test_page_counts_cells_and_names_methods_without_figures():
    problem_figures = make_problem_figures(
        make_figures(0.50, 0.01, [0.9, 0.9, 0.9]), make_figures(0.6, 0.01, [0.9, 0.9, 0.9])
    )
    page = simpler_page.markdown({"heart": problem_figures})
    assert "1 of 2 cells." in page
    assert "| static | 2 | 1 | 0 |" in page
    # 60 % - 50 %, with errors of 1 % each: sqrt(2) %
    assert "| heart | static | saving | 50.0 % / 0.40 | 60.0 % / 0.40 | +10.00 ± 1.41 |" in page
    assert "Not among the figures: confidence, two-stage" in page
    assert "0 of 0 cells." in page


def test_page_counts_leads_of_both_sides():
    problem_figures = make_problem_figures(
        make_figures(0.50, 0.01, [0.9, 0.9, 0.9]), make_figures(0.60, 0.01, [0.8, 0.8, 0.8])
    )
    page = simpler_page.markdown({"heart": problem_figures})
    assert "| static | 2 | 1 | 1 |" in page  # it saves more, and `staged` is more accurate
