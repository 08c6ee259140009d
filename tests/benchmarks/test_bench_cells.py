"""Cells: run once, resumed, and renamed by whatever decides their result."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_adapt, cache
from benchmarks.comparison import cells, peers
from benchmarks.comparison.cells import Cell, Settings

QUICK = Settings(quick=True, fits=3)


@pytest.mark.slow
def test_a_cell_is_run_once_and_read_after(tmp_path, monkeypatch):
    cell = Cell("breast_cancer", "static", 0)
    first = cells.run(cell, QUICK, tmp_path)
    assert first["folds"][0]["points"]

    def fail(*_):
        raise AssertionError("the cell was run again")

    monkeypatch.setattr(peers, "solve", fail)
    assert cells.run(cell, QUICK, tmp_path) == first


def test_a_run_that_breaks_off_goes_on_where_it_stopped(tmp_path, monkeypatch):
    todo = [Cell("breast_cancer", m, 0) for m in ("static", "cegb-coupled")]
    solve = peers.solve

    def broken(method, task):
        if method == "cegb-coupled":
            raise KeyboardInterrupt
        return solve(method, task)

    monkeypatch.setattr(peers, "solve", broken)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cells(todo, QUICK, cache=tmp_path)
    assert cells.cached(todo[0], QUICK, tmp_path)
    assert not list(tmp_path.glob("*.part"))

    monkeypatch.setattr(peers, "solve", solve)
    lines: list[str] = []
    cells.run_cells(todo, QUICK, cache=tmp_path, say=lines.append)
    assert lines[0] == "1 of 2 cells are in the cache"
    assert len(lines) == 2


def test_keys_change_with_what_decides_the_result(monkeypatch):
    cell = Cell("breast_cancer", "cegb-coupled", 0)
    key = cell.key(QUICK)
    assert cell.key(QUICK) == key
    assert cell.key(Settings(quick=True, fits=4)) != key
    assert Cell("breast_cancer", "cegb-coupled", 1).key(QUICK) != key
    monkeypatch.setattr(peers, "code_version", lambda _module: "other")
    assert cell.key(QUICK) != key


def test_the_code_version_reaches_as_far_as_the_imports(tmp_path, monkeypatch):
    module = tmp_path / "near.py"
    module.write_text("from benchmarks import far\n")
    far = tmp_path / "far.py"
    far.write_text("x = 1\n")
    sources = {"benchmarks.near": module, "benchmarks.far": far}
    monkeypatch.setattr(cache, "_source", sources.get)

    def now():
        cache.code_version.cache_clear()
        return cache.code_version("benchmarks.near")

    first = now()
    far.write_text('"""Words decide nothing."""\nx = 1  # nor do these\n')
    assert now() == first
    far.write_text("x = 2\n")
    assert now() != first
    cache.code_version.cache_clear()


def test_what_a_package_hands_on_is_followed_to_its_module():
    assert cache._source("gatewise_training.StagedCascade").name == "staged.py"
    assert cache._source("gatewise_training.methods").name == "methods.py"
    assert cache._source("gatewise_training.nothing") is None
    assert cache._source("gatewise_training") is None


def test_a_peer_does_not_depend_on_the_systems_it_is_compared_with(monkeypatch):
    read = []
    source = cache._source
    monkeypatch.setattr(cache, "_source", lambda name: read.append(source(name)) or read[-1])
    cache.code_version.cache_clear()
    cache.code_version("benchmarks.comparison.peer_cegb")
    names = {path.name for path in read if path}
    assert {"peer_cegb.py", "boosters.py", "record.py", "validation_split.py"} <= names
    assert not names & {"__init__.py", "staged.py", "thresholds.py", "peer_catboost.py"}
    cache.code_version.cache_clear()


@pytest.mark.slow
def test_a_quick_run_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(Settings, "fits_of", 3)
    monkeypatch.setattr(
        Settings, "folds", lambda _, problem, seed: [problem.deal(seed)[0].thinned(120)]
    )
    arguments = [
        "--quick", "--only", "breast_cancer", "--methods", "staged,f0,two-stage,cegb-lazy",
        "--jobs", "1", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert bench_adapt.main(arguments) == 0
    found = json.loads((tmp_path / "out/adapt/breast_cancer.json").read_text())
    assert set(found["methods"]) == {"staged", "f0", "two-stage", "cegb-lazy"}
    assert len(found["budgets"]) == 12
    assert set(found["against"]) == {"f0", "two-stage", "cegb-lazy"}
    for figures in found["methods"].values():
        assert 0 <= figures["within_1"]["cut"]["mean"] <= 1
        assert [row["cost"]["mean"] for row in figures["at_budgets"]][-1] <= 30
    assert "## breast_cancer" in (tmp_path / "out" / "adapt.md").read_text()
    assert (tmp_path / "out/adapt/breast_cancer.svg").read_text().startswith("<?xml")
