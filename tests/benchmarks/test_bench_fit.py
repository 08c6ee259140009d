"""What fitting costs: parts time what they say, figures are medians, memory is a real peak."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import bench_fit
from benchmarks.data import problems
from benchmarks.fit_parts import PARTS, SETTING, Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    fold = problems.get("breast_cancer").deal(0)[0]
    return Bench(fold, tmp_path_factory.mktemp("kept"), 200)


def run(name, bench):
    part = PARTS[name][1](bench)
    assert next(part) == {}  # all is prepared
    about = dict(next(part))
    assert list(part) == []
    return about


def test_the_plain_fit_keeps_its_answers_for_others(bench):
    about = run("plain-f0", bench)
    plan, proba = bench.plan(), np.load(bench.answers)
    assert proba.shape == (len(plan.y), 2)
    right = proba.argmax(1) == plan.y
    assert (
        right[plan.validation_rows].mean() > 0.85
    )  # row for row: shuffled ones would be right on half
    assert 0 < about["trees"] < 400


def test_plain_fits_have_the_rounds_and_trees_of_adapt(bench):
    run("plain-f0", bench)
    adapt, whole = run("adapt", bench), run("adapt-fit", bench)
    assert run("plain-rounds", bench) == {"trees": SETTING["n_rounds"]}
    # on few rows the gate has no empty trees in the warm-up
    trees = 2 * SETTING["n_rounds"] - SETTING["warm_up"]
    assert adapt["trees"] == whole["trees"] == trees
    assert run("plain-trees", bench)["trees"] == trees


def test_the_stages_that_thresholds_are_tuned_on_are_real(bench, monkeypatch):
    from gatewise_training.operating_points import thresholds

    seen = []
    frontier = thresholds.frontier_points
    monkeypatch.setattr(
        thresholds, "frontier_points", lambda record: seen.append(record) or frontier(record)
    )
    about = run("thresholds", bench)
    (record,) = seen
    assert record.scores.shape == (10, 200)
    assert record.correct.shape == (11, 200)
    assert about["points"] == len(frontier(record))
    accuracy = record.correct.mean(axis=1)
    assert accuracy[-1] > accuracy[0]
    sure = record.scores[0] >= np.median(record.scores[0])
    assert record.correct[0][sure].mean() > record.correct[0][~sure].mean()


def measured(cpu, peak):
    return {"cpu": cpu, "wall": cpu, "peak": peak, "before": 10**8, "about": {"trees": 3}}


def test_figures_are_medians_and_ratios_of_them(monkeypatch):
    bundled = problems.get("breast_cancer")
    monkeypatch.setattr(problems, "get", lambda _name: bundled)
    runs = {
        "plain-f0": [measured(c, 10**9) for c in (1.0, 9.0, 2.0)],
        "staged": [measured(50.0, 2 * 10**9)],
    }
    found = bench_fit.document(runs, quick=False)
    assert found["parts"]["plain-f0"]["cpu"] == {"median": 2.0, "runs": [1.0, 9.0, 2.0]}
    assert found["ratios"] == [
        {"part": "staged", "against": "plain-f0", "ratio": 25.0, "at_most": 20.0}
    ]
    assert found["memory"] == [{"part": "staged", "peak_gb": 2.0, "at_most_gb": 3.0}]
    assert {"python", "lightgbm"} <= set(found["versions"])
    page = bench_fit.markdown(json.loads(json.dumps(found)))
    assert "| CPU s of `staged` / `plain-f0` | 25.00 | 20 | missed |" in page
    assert "| peak GB of `staged` | 2.00 | 3 | met |" in page
    assert "not a result" not in page


@pytest.mark.skipif(sys.platform != "linux", reason="peaks can be forgotten on Linux only")
def test_memory_sees_a_peak_that_has_passed_and_can_forget_it():
    before = bench_fit.memory(peak=False)
    block = np.ones(40_000_000)  # 320 MB
    del block
    assert bench_fit.memory(peak=True) > before + 250e6
    bench_fit.forget_peak()
    assert bench_fit.memory(peak=True) < before + 150e6


@pytest.mark.slow
@pytest.mark.skipif(
    not (problems.data_folder() / "covertype.npz").is_file(), reason="needs the data folder"
)
def test_a_quick_run_from_end_to_end(tmp_path):
    arguments = ["--quick", "--only", "plain-trees,adapt", "--out", str(tmp_path)]
    assert bench_fit.main(arguments) == 0
    found = json.loads((tmp_path / "fit.json").read_text())
    assert list(found["parts"]) == ["plain-f0", "plain-trees", "adapt"]
    assert [row["part"] for row in found["ratios"]] == ["adapt"]
    for part in found["parts"].values():
        assert part["peak_gb"]["median"] >= part["before_gb"]["median"] > 0.05
    assert "not a result" in (tmp_path / "fit.md").read_text()
