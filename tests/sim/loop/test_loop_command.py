"""The command of the simulated loop with the rules of the docs, and its example in Python."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gatewise.cli import main
from tests.sim.loop.test_days import deployed, world

pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[3]
_ = deployed  # a fixture


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "week.csv"
    X, y = world(600, 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x0", "x1", "x2", "label"])
        writer.writerows([*map(repr, row), label] for row, label in zip(X.tolist(), y, strict=True))
    return path


def test_the_rules_of_the_docs_are_read_and_a_line_per_day_is_shown(
    deployed, data, tmp_path, capsys
):
    page = (ROOT / "docs/simulation.md").read_text()
    (text,) = re.findall(r"```toml\n(days = .*?)```", page, re.DOTALL)
    rules = tmp_path / "loop.toml"
    rules.write_text(text.replace("days = 14", "days = 2").replace("= 1000 ", "= 200 "))
    train = deployed.path.parent / "train.npz"
    command = ["simulate", "loop", deployed.path, "--data", data, "--train", train]
    command += ["--rules", rules]
    assert main([*map(str, command)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^1 +7 .*\n2 +7 ", shown, re.MULTILINE), shown
    assert "labels asked for" in shown
    assert main([*map(str, command), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [day["day"] for day in document["days"]] == [1, 2]
    assert document["rules"]["label_errors"] == 0.02


def test_unknown_rules_are_refused_by_name(deployed, data, tmp_path, capsys):
    rules = tmp_path / "loop.toml"
    rules.write_text("hours = 3\n")
    command = ["simulate", "loop", deployed.path, "--data", data, "--train", "t.npz"]
    assert main([*map(str, command), "--rules", str(rules)]) == 2
    assert "hours" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_in_python_finds_the_drift_and_releases(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/learning_fleet.py"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "alarm" in done.stdout
    assert re.search(r"[1-9] releases after the first", done.stdout), done.stdout
