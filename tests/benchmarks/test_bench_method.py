"""Tests of methods of users in the comparison, and of errors for broken ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_adapt
from benchmarks.comparison import peers
from benchmarks.comparison.method import list_checked_points, load_user_method
from benchmarks.comparison.record import Point
from benchmarks.data import problems
from gatewise.errors import InputError

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'own_method.py'}:Trees"


@pytest.fixture
def task():
    """A fold of a problem, with at most three fits."""
    problem = problems.get("breast_cancer")
    return peers.Task(problem, problem.make_folds(0)[0], 0, 3, lambda _name, make: make())


def test_the_example_has_at_most_30_lines_of_code():
    lines = Path(EXAMPLE.rpartition(":")[0]).read_text().split('"""')[2].splitlines()
    assert sum(1 for line in lines if line.strip()) <= 30


def test_points_of_the_example_have_accuracy_and_cost_of_its_trees(task):
    outcome = peers.run_method(EXAMPLE, task)
    method = load_user_method(EXAMPLE, 0)
    method.fit(*task.fold.train, task.problem.costs, task.fold.validation)
    rows, labels = task.fold.test
    accuracies_and_costs = {
        (
            float(np.mean(tree.predict(rows) == labels)),
            float(len(np.unique(tree.tree_.feature[tree.tree_.feature >= 0]))),
        )
        for tree in method.trees
    }
    assert len(outcome.points) > 2
    assert {(point.accuracy, point.cost) for point in outcome.points[1:]} <= accuracies_and_costs
    assert outcome.points[0].cost == 0  # the most frequent class without features


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_this_name", "fails: No module named"),
        ("Mine = 3", "has no class Mine"),
        ("class Mine:\n    def fit(self): ...", "no function 'points'"),
        (
            "class Mine:\n    def __init__(self): 1 / 0\n    def fit(self): ...\n"
            "    def points(self): ...",
            "its constructor fails: division by zero",
        ),
    ],
)
def test_broken_method_is_refused_before_the_run(code, message, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(code)
    out_folder = tmp_path / "out"
    assert bench_adapt.main(["--add", f"{path}:Mine", "--out", str(out_folder)]) == 2
    error_line = capsys.readouterr().err.strip()
    assert message in error_line
    assert "\n" not in error_line
    assert not out_folder.exists()


def test_method_of_a_user_may_be_a_dataclass(tmp_path):
    # dataclasses look up string annotations in the module, which must be registered
    path = tmp_path / "json.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Mine:\n"
        "    seed: int\n"
        "    def fit(self): ...\n"
        "    def points(self): ...\n"
    )
    assert load_user_method(f"{path}:Mine", 3).seed == 3
    assert sys.modules["json"] is json  # the file does not replace a module of the same name


def test_methods_of_files_with_the_same_name_are_in_different_modules(tmp_path):
    modules = []
    for folder_name in ("a", "b"):
        path = tmp_path / folder_name / "mine.py"
        path.parent.mkdir()
        path.write_text("class Mine:\n    def fit(self): ...\n    def points(self): ...\n")
        method_class = type(load_user_method(f"{path}:Mine", 0))
        modules.append(method_class.__module__)
        assert sys.modules[modules[-1]].Mine is method_class
    assert modules[0] != modules[1]


def test_error_names_a_missing_file():
    with pytest.raises(InputError, match=r"there is no file nowhere\.py"):
        load_user_method("nowhere.py:Mine", 0)


@pytest.mark.parametrize("figure", [np.nan, np.inf])
def test_points_with_infinite_figures_are_refused(figure):
    with pytest.raises(InputError, match="not finite"):
        list_checked_points("mine", [Point(0.9, figure, 0.9, 1.0)])


def test_points_of_another_type_are_refused():
    with pytest.raises(InputError, match="gave tuple, not Point"):
        list_checked_points("mine", [(0.9, 1.0)])
