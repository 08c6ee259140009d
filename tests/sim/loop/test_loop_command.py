"""Tests of the command of the simulated loop with the rules in the docs, and of the example."""

import csv
import json
import re
import runpy
from pathlib import Path

import pytest

from gatewise.cli import main
from gatewise_sim import LoopRules
from tests.sim.loop.test_days import draw_rows, first_bundle

pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[3]
_ = first_bundle  # a fixture, so the import is not unused


@pytest.fixture
def rows_path(tmp_path):
    """A CSV file of rows like those of the first day."""
    path = tmp_path / "week.csv"
    X, y = draw_rows(600, 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x0", "x1", "x2", "label"])
        writer.writerows([*map(repr, row), label] for row, label in zip(X.tolist(), y, strict=True))
    return path


@pytest.mark.slow
def test_the_command_prints_a_line_per_day_with_the_rules_of_the_docs(
    first_bundle, rows_path, tmp_path, capsys
):
    page = (ROOT / "docs/simulation.md").read_text()
    (rules_text,) = re.findall(r"```toml\n(days = .*?)```", page, re.DOTALL)
    rules_path = tmp_path / "loop.toml"
    # Fewer days and instances than in the docs, to be fast.
    rules_path.write_text(rules_text.replace("days = 14", "days = 2").replace("= 1000 ", "= 200 "))
    train_file = first_bundle.path.parent / "train.npz"
    command = ["simulate", "loop", first_bundle.path, "--data", rows_path, "--train", train_file]
    command += ["--rules", rules_path]
    assert main([*map(str, command)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^1 +7 .*\n2 +7 ", output, re.MULTILINE), output
    assert "labels requested" in output
    assert main([*map(str, command), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [day["day"] for day in document["days"]] == [1, 2]
    # the docs show the defaults of all other rules
    assert LoopRules(**document["rules"]) == LoopRules(days=2, instances=200)


@pytest.mark.slow
def test_error_names_an_unknown_rule(first_bundle, rows_path, tmp_path, capsys):
    rules_path = tmp_path / "loop.toml"
    rules_path.write_text("hours = 3\n")
    command = ["simulate", "loop", first_bundle.path, "--data", rows_path, "--train", "t.npz"]
    assert main([*map(str, command), "--rules", str(rules_path)]) == 2
    assert "hours" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("small_fits")  # for the refits
def test_the_python_example_detects_the_drift_and_releases_a_refit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")  # so that no line of the table is broken
    runpy.run_path(str(ROOT / "examples/learning_fleet.py"))
    output = capsys.readouterr().out
    assert "alarm" in output
    assert re.search(r"[1-9] further releases", output), output
