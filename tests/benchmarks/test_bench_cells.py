"""Cells are cached, resumed after an interruption, and keyed by all their inputs."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_adapt, cache
from benchmarks.comparison import cells, peers
from benchmarks.comparison.cells import Cell, Settings

QUICK = Settings(quick=True, max_fits=3)


@pytest.mark.slow
def test_cell_is_run_once_and_then_read_from_the_cache(tmp_path, monkeypatch):
    cell = Cell("breast_cancer", "static", 0)
    first = cells.run_cell(cell, QUICK, tmp_path)
    assert first["folds"][0]["points"]

    def fail(*_):
        raise AssertionError("the cell was run again")

    monkeypatch.setattr(peers, "run_method", fail)
    assert cells.run_cell(cell, QUICK, tmp_path) == first


@pytest.mark.slow
def test_interrupted_run_continues_with_the_missing_cells(tmp_path, monkeypatch):
    pending_cells = [Cell("breast_cancer", m, 0) for m in ("static", "cegb-coupled")]
    solve = peers.run_method

    def interrupted_solve(method, task):
        if method == "cegb-coupled":
            raise KeyboardInterrupt
        return solve(method, task)

    monkeypatch.setattr(peers, "run_method", interrupted_solve)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cells(pending_cells, QUICK, cache=tmp_path)
    assert cells.read_cached(pending_cells[0], QUICK, tmp_path)
    assert not list(tmp_path.glob("*.part"))

    monkeypatch.setattr(peers, "run_method", solve)
    lines: list[str] = []
    cells.run_cells(pending_cells, QUICK, cache=tmp_path, report=lines.append)
    assert lines[0] == "1 of 2 cells are in the cache"
    assert len(lines) == 2


def test_key_changes_with_settings_seed_and_code(monkeypatch):
    cell = Cell("breast_cancer", "cegb-coupled", 0)
    key = cell.key(QUICK)
    assert cell.key(QUICK) == key
    assert cell.key(Settings(quick=True, max_fits=4)) != key
    assert Cell("breast_cancer", "cegb-coupled", 1).key(QUICK) != key
    monkeypatch.setattr(peers, "code_version", lambda _module: "other")
    assert cell.key(QUICK) != key


def test_code_version_includes_imported_modules(tmp_path, monkeypatch):
    module = tmp_path / "near.py"
    module.write_text("from benchmarks import far\n")
    far = tmp_path / "far.py"
    far.write_text("x = 1\n")
    sources = {"benchmarks.near": module, "benchmarks.far": far}
    monkeypatch.setattr(cache, "_source_file", sources.get)

    def current_version():
        cache.code_version.cache_clear()
        return cache.code_version("benchmarks.near")

    first = current_version()
    far.write_text('"""Docstring."""\nx = 1  # comment\n')
    assert current_version() == first
    far.write_text("x = 2\n")
    assert current_version() != first
    cache.code_version.cache_clear()


def test_source_of_an_exported_name_is_its_defining_module():
    assert cache._source_file("gatewise_training.StagedCascade").name == "staged.py"
    assert cache._source_file("gatewise_training.methods").name == "methods.py"
    assert cache._source_file("gatewise_training.nothing") is None
    assert cache._source_file("gatewise_training") is None


def test_code_of_a_peer_excludes_the_project_systems(monkeypatch):
    sources = []
    source = cache._source_file
    monkeypatch.setattr(
        cache, "_source_file", lambda name: sources.append(source(name)) or sources[-1]
    )
    cache.code_version.cache_clear()
    cache.code_version("benchmarks.comparison.peer_cegb")
    names = {path.name for path in sources if path}
    assert {"peer_cegb.py", "boosters.py", "record.py", "validation_split.py"} <= names
    assert not names & {"__init__.py", "staged.py", "thresholds.py", "peer_catboost.py"}
    cache.code_version.cache_clear()


@pytest.mark.slow
def test_quick_run_writes_figures_page_and_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(Settings, "n_fits", 3)
    monkeypatch.setattr(
        Settings, "folds", lambda _, problem, seed: [problem.make_folds(seed)[0].sample(120)]
    )
    arguments = [
        "--quick", "--only", "breast_cancer", "--methods", "staged,f0,two-stage,cegb-lazy",
        "--jobs", "1", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert bench_adapt.main(arguments) == 0
    figures = json.loads((tmp_path / "out/adapt/breast_cancer.json").read_text())
    assert set(figures["methods"]) == {"staged", "f0", "two-stage", "cegb-lazy"}
    assert len(figures["budgets"]) == 12
    assert set(figures["against"]) == {"f0", "two-stage", "cegb-lazy"}
    for method_figures in figures["methods"].values():
        assert 0 <= method_figures["within_1"]["cut"]["mean"] <= 1
        assert [row["cost"]["mean"] for row in method_figures["at_budgets"]][-1] <= 30
    assert "## breast_cancer" in (tmp_path / "out" / "adapt.md").read_text()
    assert (tmp_path / "out/adapt/breast_cancer.svg").read_text().startswith("<?xml")
