"""What all benchmarks share: bad input is one line, and nothing is written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import bench_adapt, bench_trees, harness
from benchmarks.data import problems


@pytest.mark.parametrize(
    ("benchmark", "arguments", "says"),
    [
        (bench_adapt, ["--only", "nothing"], "no problem 'nothing'"),
        (bench_adapt, ["--methods", "nothing"], "no method 'nothing'"),
        (bench_adapt, ["--only", "forest-7"], "python -m benchmarks.data fetch covertype"),
        (bench_trees, ["--only", "nothing"], "no part 'nothing'"),
        (bench_trees, [], "is not there: python -m benchmarks.data fetch"),
    ],
)
def test_bad_input_is_told_in_one_line(benchmark, arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GATEWISE_DATA", str(tmp_path))
    problems.get.cache_clear()
    assert benchmark.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def committed_benchmarks():
    """Benchmarks whose figures and page are in the repository."""
    for file in sorted(Path(harness.__file__).parent.glob("bench_*.py")):
        module = importlib.import_module(f"benchmarks.{file.stem}")
        benchmark = getattr(module, "BENCHMARK", None)
        if benchmark is not None and (harness.RESULTS / f"{benchmark.name}.md").exists():
            yield benchmark


def test_each_committed_page_shows_the_committed_figures():
    others = []
    for benchmark in committed_benchmarks():
        figures = json.loads((harness.RESULTS / f"{benchmark.name}.json").read_text())
        page = (harness.RESULTS / f"{benchmark.name}.md").read_text()
        if page != "\n".join([*benchmark.page(figures), ""]):
            others.append(benchmark.name)
    assert others == []
