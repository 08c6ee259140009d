"""The neural comparison: figures over steps, the cells that we lead, the page, no peers given."""

import json

import numpy as np
import pytest

from benchmarks import bench_neural
from benchmarks.bench_neural import main, stands
from benchmarks.neural.methods import Peers, cascade
from benchmarks.neural.pages import OURS, page, summary
from benchmarks.neural.tasks import Task, ahead, draw, figures, led, mean_over_steps, score
from gatewise.errors import InputError


def test_mean_over_steps_is_the_area_by_trapezes():
    assert mean_over_steps([0.5, 0.5, 0.5]) == 0.5
    assert mean_over_steps([0.0, 1.0, 1.0]) == pytest.approx(0.75)
    scores = [0.5, 0.7, 0.8, 0.9]
    found = figures(scores, [1, 3])
    assert found == {"1": 0.7, "3": 0.9, "mean": mean_over_steps(scores)}


def test_score_is_auroc_for_two_classes_and_accuracy_for_more():
    y = np.array([0, 1, 1])
    shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    assert score(shares, y) == 1.0  # ranked well, though no answer is class 1
    assert score(np.eye(3), np.array([0, 1, 1])) == pytest.approx(2 / 3)


def test_cells_are_led_over_the_seeds_that_both_have():
    ours = {0: {"5": 0.8, "mean": 0.7}, 1: {"5": 0.6, "mean": 0.7}}
    equal = {0: {"5": 0.8, "mean": 0.6}}
    better = {0: {"5": 0.7, "mean": 0.7}, 1: {"5": 0.9, "mean": 0.6}}
    assert ahead(ours, equal) == {"5": False, "mean": True}
    assert ahead(ours, better) == {"5": False, "mean": True}
    assert led(ours, {"a": equal, "b": {1: {"5": 0.5, "mean": 0.8}}}) == {"5": False, "mean": False}


def document() -> dict:
    def method(five: float, seconds: float) -> dict:
        return {
            "curves": {0: [0.5, five]},
            "figures": {0: {"5": five, "mean": five - 0.1}},
            "cpu_seconds": {0: seconds},
            "about": {0: {"torch": "2"}},
        }

    methods = {OURS: method(0.9, 2.0), "sefa": method(0.95, 100.0), "dime": method(0.8, 10.0)}
    part = {"metric": "auroc", "features": 5, "classes": 2, "rows": [10, 5, 5], "methods": methods}
    found = {
        "settings": {"configurations": {"sefa": [1]}, "peers": "x", "peers_commit": "abc"},
        "versions": {"python": "3"},
        "sets": {"mbne_tiny": part},
    }
    return found | {"summary": summary(found["sets"])}


def test_summary_counts_cells_and_time_and_the_page_shows_losses():
    found = document()
    total = found["summary"]
    assert (total["cells"], total["led"]) == (2, 0)
    assert total["against"]["sefa"]["led"] == 0
    assert total["against"]["dime"]["led"] == 2
    assert total["against"]["dime"]["share_of_time"] == pytest.approx(0.2)
    text = page(found)
    assert "leads 0 (0 %)" in text
    assert "| 90.00 | **95.00** | 80.00 |" in text
    assert "Not run: GDFS on mbne_tiny" in text
    assert json.loads(json.dumps(total)) == total


def test_page_says_what_the_search_of_aaco_takes():
    found = document()
    assert "- AACO:" not in page(found)
    found["settings"] |= {"aaco": "y", "aaco_commit": "abd"}
    found["settings"]["configurations"]["aaco"] = [0.05]
    methods = found["sets"]["mbne_tiny"]["methods"]
    about = {"torch": "1", "xgboost": "2", "acquisition_cpu_seconds": 3.0, "instances": 6}
    methods["aaco"] = methods["dime"] | {"about": {0: about}}
    assert "another 0.50 CPU seconds of each instance" in page(found)


def small(n: int, held: int) -> Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n + held, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    cuts = np.split(np.arange(len(y)), [400, 400 + held])
    return Task("drawn", 0, *((x[rows], y[rows]) for rows in cuts), n_classes=2)


def test_figures_as_they_stand_are_taken_for_the_same_rows_and_settings_alone():
    task = small(900, 60)
    sefa = {"curves": {"0": [0.5, 0.9]}, "about": {"0": {"cpu_seconds": 7.0}}}
    part = {"metric": "auroc", "features": 4, "classes": 2, "rows": [400, 60, 500]}
    settings = {"configurations": {"sefa": [1]}, "peers_commit": "abc"}
    standing = {"settings": settings, "sets": {"drawn": part | {"methods": {"sefa": sefa}}}}
    about = {"cpu_seconds": 7.0, "earlier": True}
    assert stands(standing, task, "sefa", "abc") == {"curve": [0.5, 0.9], "about": about}
    assert stands(standing, task, "dime", "abc") is None
    assert stands({}, task, "sefa", "abc") is None
    for other, commit in ((small(901, 60), "abc"), (task, "abd")):
        with pytest.raises(InputError, match="stand for other rows or settings"):
            stands(standing, other, "sefa", commit)


def test_page_marks_times_of_an_earlier_run_and_seeds_that_were_left_out():
    found = document()
    assert "earlier run" not in page(found)
    methods = found["sets"]["mbne_tiny"]["methods"]
    methods["sefa"]["about"][0]["earlier"] = True
    for each in methods[OURS], methods["dime"]:
        for values in each.values():
            values[1] = values[0]
    text = page(found)
    assert "| 2 ± 0 | 100\\* | 10 ± 0 |" in text
    assert "\\* of an earlier run" in text
    assert "Not run: SEFA on mbne_tiny (seed 1)" in text
    assert "| **90.00 ± 0.00** | 95.00 |" in text  # a part of the seeds is not compared


def test_drawn_parts_share_no_row():
    task = draw("breast_cancer", 0)
    assert task.metric == "auroc"
    assert task.budgets() == [5, 10, 15]
    parts = [{row.tobytes() for row in part[0]} for part in (task.train, task.validation)]
    assert not parts[0] & parts[1]


@pytest.mark.parametrize("held", [60, 400])
def test_cascade_answers_within_each_budget(held):
    task = small(900, held)
    answers = cascade(task)
    assert answers.test.shape == (5, 500, 2)
    scores = [score(p, task.test[1]) for p in answers.test]
    assert scores[0] == 0.5
    assert scores[2] > 0.95
    assert all(most <= budget for budget, most in enumerate(answers.about["most_acquired"]))
    assert answers.about["most_acquired"][2] == 2


def test_without_the_peers_nothing_is_run(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("GATEWISE_FIELD", raising=False)
    assert main([]) == 0
    assert "nothing is run" in capsys.readouterr().err
    assert main(["--field", str(tmp_path)]) == 2
    assert "no clone" in capsys.readouterr().err
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sefa.py").touch()
    with pytest.raises(InputError, match="no interpreter"):
        Peers.found(tmp_path, tmp_path / "python")
    assert main(["--field", str(tmp_path), "--aaco", str(tmp_path)]) == 2
    assert "no clone of https://github.com/lupalab/aaco" in capsys.readouterr().err
    seeds = bench_neural.SEEDS
    assert all(set(left) <= set(seeds[name]) for (name, _), left in bench_neural.NOT_RUN.items())
