"""The page of simpler systems lists only cells with significant leads."""

import pytest

from benchmarks.comparison import simpler_page


def figures(cut, error, accuracies):
    return {
        "seeds": [0, 1, 2],
        "within_1": {"cut": {"mean": cut, "error": error}, "loss": {"mean": 0.004, "error": 0.0}},
        "at_budgets": [{"of_seeds": accuracies}],
    }


def problem(ours, other):
    return {"budgets": [3.0], "methods": {"staged": ours, "static": other}}


@pytest.mark.parametrize(
    ("other", "cells"),
    [
        (figures(0.60, 0.01, [0.9, 0.9, 0.9]), ["saving"]),
        (figures(0.52, 0.02, [0.9, 0.9, 0.9]), []),  # the lead is below two standard errors
        (figures(0.50, 0.00, [0.92, 0.93, 0.94]), ["budget 3"]),
        (
            figures(0.50, 0.00, [0.80, 0.90, 1.05]),
            [],
        ),  # the spread over seeds is larger than the lead
        (figures(0.50, 0.00, [0.9005, 0.9005, 0.9005]), []),  # the lead is too small
        (figures(0.10, 0.00, [0.7, 0.7, 0.7]), []),  # behind
    ],
)
def test_leads_are_larger_than_two_standard_errors(other, cells):
    problem_figures = problem(figures(0.50, 0.01, [0.9, 0.9, 0.9]), other)
    leads = list(simpler_page.leads("heart", problem_figures, ("static", "catboost")))
    assert [lead.cell for lead in leads] == cells
    assert all(lead.method == "static" for lead in leads)


def test_page_counts_cells_and_names_methods_without_figures():
    problem_figures = problem(
        figures(0.50, 0.01, [0.9, 0.9, 0.9]), figures(0.6, 0.01, [0.9, 0.9, 0.9])
    )
    page = simpler_page.markdown({"heart": problem_figures})
    assert "1 of 2 cells." in page
    assert "| heart | static | saving | 50.0 % / 0.40 | 60.0 % / 0.40 | +10.00 ± 1.41 |" in page
    assert "Not among the figures: confidence, two-stage" in page
    assert "0 of 0 cells." in page
