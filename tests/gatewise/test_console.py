"""Progress without a terminal: a line per tenth and per new step."""

from __future__ import annotations

from gatewise.console import progress, showing_progress


def test_a_new_step_is_shown_before_its_first_tenth(capsys):
    with showing_progress(), progress("fit") as report:
        for step_name in ("boosting", "svm", "svm"):
            report(0, 1, step_name)
        # only the first report in each further tenth is shown
        for n_done in (1, 10, 14, 0, 20):
            report(n_done, 100, "stages")
        report(0, 1)
    assert capsys.readouterr().err.splitlines() == [
        "fit", "  fit: 0% boosting", "  fit: 0% svm", "  fit: 10% stages", "  fit: 20% stages",
    ]  # fmt: skip
    with progress("fit") as report:  # by default a fit shows nothing
        report(1, 2)
    assert capsys.readouterr().err == ""
