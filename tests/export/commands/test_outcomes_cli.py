"""``gatewise outcomes`` chooses thresholds from a table of outcomes."""

from __future__ import annotations

import json

import numpy as np
import pytest

LOSS_OPTIONS = ("--score", "sure", "--small-loss", "small", "--big-loss", "big")
COST_OPTIONS = ("--small-cost", "0.1", "--big-cost", "2")


@pytest.fixture
def outcomes_csv(tmp_path, monkeypatch):
    """A CSV file in the current folder with outcomes of two systems and three small models.

    The small system is right with the probability 0.6 + 0.4 times its score, and the big one with
    0.97. Each of the three small models is right with 0.8; their wrong answer is "c".
    """
    rng = np.random.default_rng(0)
    n_rows = 2000
    score = rng.uniform(size=n_rows)
    truth = rng.choice(["a", "b"], n_rows)
    columns = {"sure": score.round(4), "small": (rng.uniform(size=n_rows) > 0.6 + 0.4 * score) * 1}
    columns |= {"big": (rng.uniform(size=n_rows) > 0.97) * 1, "price": rng.uniform(1, 3, n_rows)}
    columns |= {"truth": truth, "big_answer": np.where(columns["big"], "c", truth)}
    for name in ("v1", "v2", "v3"):
        columns[name] = np.where(rng.uniform(size=n_rows) > 0.8, "c", truth)
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "outcomes.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    monkeypatch.chdir(tmp_path)


def test_thresholds_keep_the_loss_bound_with_a_guarantee(outcomes_csv, run_command, tmp_path):
    options = ("--max-loss", "0.05", "--out", "thresholds.json")
    exit_status, output, message = run_command(
        "outcomes", "outcomes.csv", *LOSS_OPTIONS, *COST_OPTIONS, *options
    )
    assert exit_status == 0, message
    assert "guaranteed with confidence 0.95" in output
    assert "less than the big system alone" in output
    document = json.loads((tmp_path / "thresholds.json").read_text())
    (threshold,) = document["thresholds"]
    assert 0.2 < threshold < 0.95  # both systems answer some rows
    assert document["lost"] <= 0.05
    assert document["guarantee"]["bound"] == 0.05


def test_a_cost_can_be_a_column(outcomes_csv, run_command):
    costs = ("--small-cost", "0.1", "--big-cost", "price")
    exit_status, output, message = run_command(
        "outcomes", "outcomes.csv", *LOSS_OPTIONS, *costs, "--routed", "--json"
    )
    assert exit_status == 0, message
    assert 1.8 < json.loads(output)["big_cost"] < 2.2  # prices are uniform in 1 to 3


def test_agreement_is_a_score(outcomes_csv, run_command):
    options = ("--agreement", "v1,v2,v3", "--truth", "truth", "--big-answer", "big_answer")
    exit_status, output, message = run_command(
        "outcomes", "outcomes.csv", *options, *COST_OPTIONS, "--max-loss", "0.05", "--json"
    )
    assert exit_status == 0, message
    document = json.loads(output)
    # Three answers agree fully or two of them do; the threshold is half-way between 2/3 and 1.
    assert document["thresholds"][0] == pytest.approx(5 / 6, abs=1e-3)
    assert 0.3 < document["offload_rate"] < 0.7  # all three agree on 0.8^3 = 51 % of the rows


def test_answers_are_compared_by_value_and_missing_ones_are_refused(
    tmp_path, run_command, assert_refused
):
    rows = [f"{i % 3},{i % 3},{i % 3 if i % 4 else 0}.0" for i in range(600)]
    answer_file = tmp_path / "answers.csv"
    options = ("--agreement", "v1,v1", "--truth", "v1", "--big-answer", "big", *COST_OPTIONS)
    answer_file.write_text("\n".join(["v1,v2,big", *rows]))
    exit_status, output, message = run_command(
        "outcomes", answer_file, *options, "--max-loss", "0.5", "--json"
    )
    assert exit_status == 0, message
    # the float column is wrong in the rows with i % 4 == 0 and i % 3 != 0
    assert json.loads(output)["big_loss"] == pytest.approx(1 / 6)
    answer_file.write_text("\n".join(["v1,v2,big", *rows, "1,1,"]))
    assert "column 'big' has no answer in 1 row: leave" in assert_refused(
        "outcomes", answer_file, *options
    )
    answer_file.write_text("\n".join(["v1,v2,big", *rows, "1,1,no-answer"]))
    assert run_command("outcomes", answer_file, *options, "--max-loss", "0.5")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--score", "nothing", *LOSS_OPTIONS[2:], *COST_OPTIONS), "csv has no column 'nothing'"),
        (("--score", "sure", *COST_OPTIONS), "give --score, --small-loss and --big-loss"),
        ((*LOSS_OPTIONS, *COST_OPTIONS, "--group", "nothing"), "has no column 'nothing'"),
        (("--score", "truth", *LOSS_OPTIONS[2:], *COST_OPTIONS), "must hold numbers"),
        (("--agreement", "v1,v2", *COST_OPTIONS), "needs --truth"),
        ((*LOSS_OPTIONS, *COST_OPTIONS, "--budget", "1", "--max-loss", "0.1"), "give only one of"),
    ],
)
def test_errors_say_what_to_do(outcomes_csv, run_command, options, message):
    exit_status, _, error_text = run_command("outcomes", "outcomes.csv", *options)
    assert exit_status == 2
    assert message in error_text
