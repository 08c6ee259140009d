"""Tests of the error messages of two benchmarks, and of the committed pages."""

from __future__ import annotations

import importlib
import json
import pickle
from pathlib import Path

import pytest

from benchmarks import bench_adapt, bench_trees, harness
from benchmarks.data import problems


@pytest.mark.parametrize(
    ("benchmark", "arguments", "message"),
    [
        (bench_adapt, ["--only", "nothing"], "no problem 'nothing'"),
        (bench_adapt, ["--methods", "nothing"], "no method 'nothing'"),
        (bench_adapt, ["--only", "forest-7"], "python -m benchmarks.data fetch covertype"),
        (bench_trees, ["--only", "nothing"], "no part 'nothing'"),
    ],
)
def test_bad_input_gives_a_one_line_message(
    benchmark, arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("GATEWISE_DATA", str(tmp_path))
    problems.get.cache_clear()
    assert (
        getattr(benchmark, "BENCHMARK", benchmark).main(
            [*arguments, "--out", str(tmp_path / "out")]
        )
        == 2
    )
    output = capsys.readouterr().err
    assert message in output
    assert len(output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def find_committed_benchmarks():
    """Yield the benchmarks with figures and a page in the repository."""
    for file in sorted(Path(harness.__file__).parent.glob("bench_*.py")):
        module = importlib.import_module(f"benchmarks.{file.stem}")
        benchmark = getattr(module, "BENCHMARK", None)
        if benchmark is not None and (harness.RESULTS / f"{benchmark.name}.md").exists():
            yield benchmark


def test_each_committed_page_shows_the_committed_figures():
    outdated_pages = []
    for benchmark in find_committed_benchmarks():
        figures = json.loads((harness.RESULTS / f"{benchmark.name}.json").read_text())
        page = (harness.RESULTS / f"{benchmark.name}.md").read_text()
        if page != "\n".join([*benchmark.page(figures), ""]):
            outdated_pages.append(benchmark.name)
    assert outdated_pages == []


def test_parts_can_be_sent_to_their_processes():
    for benchmark in find_committed_benchmarks():
        for part in benchmark.parts.values():
            assert callable(pickle.loads(pickle.dumps(part)))


def test_targets_are_at_most_or_at_least_their_bounds():
    targets = {
        "slow": ("time", "at most", 2.5),
        "fast": ("rate", "at least", 2.5),
        "equal": ("share", "at least", 2.6),
    }
    figures = dict.fromkeys(targets, 2.6)
    holds = harness.targets_met(targets, figures)
    assert holds == {"slow": False, "fast": True, "equal": True}
    lines = harness.targets_table(targets, {"figures": figures, "holds": holds})
    assert lines[2:4] == [
        "| time | at most 2.5 | 2.6 | missed |", "| rate | at least 2.5 | 2.6 | holds |",
    ]  # fmt: skip
