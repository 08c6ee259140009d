"""Tests that cells are cached, resumed after an interruption, and keyed by all their inputs."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_adapt, cache
from benchmarks.comparison import cells, peers
from benchmarks.comparison.cells import Cell, Settings

#: Settings of a run that takes seconds.
QUICK_SETTINGS = Settings(quick=True, max_fits=3)


@pytest.mark.slow
def test_cell_is_run_once_and_then_read_from_the_cache(tmp_path, monkeypatch):
    cell = Cell("breast_cancer", "static", 0)
    result = cells.run_cell(cell, QUICK_SETTINGS, tmp_path)
    assert result["folds"][0]["points"]

    def fail_at_a_run(*_):
        raise AssertionError("the cell was run again")

    monkeypatch.setattr(peers, "run_method", fail_at_a_run)
    assert cells.run_cell(cell, QUICK_SETTINGS, tmp_path) == result


@pytest.mark.slow
def test_interrupted_run_continues_with_the_missing_cells(tmp_path, monkeypatch):
    pending_cells = [Cell("breast_cancer", method, 0) for method in ("static", "cegb-coupled")]
    run_method = peers.run_method

    def run_or_interrupt(method, task):
        if method == "cegb-coupled":
            raise KeyboardInterrupt
        return run_method(method, task)

    monkeypatch.setattr(peers, "run_method", run_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cells(pending_cells, QUICK_SETTINGS, cache=tmp_path)
    assert cells.read_cached(pending_cells[0], QUICK_SETTINGS, tmp_path)
    assert not list(tmp_path.glob("*.part"))

    monkeypatch.setattr(peers, "run_method", run_method)
    lines: list[str] = []
    cells.run_cells(pending_cells, QUICK_SETTINGS, cache=tmp_path, report=lines.append)
    assert lines[0] == "1 of 2 cells are in the cache"
    assert len(lines) == 2


def test_key_changes_with_settings_seed_and_code(monkeypatch):
    cell = Cell("breast_cancer", "cegb-coupled", 0)
    key = cell.key(QUICK_SETTINGS)
    assert cell.key(QUICK_SETTINGS) == key
    assert cell.key(Settings(quick=True, max_fits=4)) != key
    assert Cell("breast_cancer", "cegb-coupled", 1).key(QUICK_SETTINGS) != key
    monkeypatch.setattr(peers, "code_version", lambda _module: "other")
    assert cell.key(QUICK_SETTINGS) != key


def test_code_version_includes_imported_modules(tmp_path, monkeypatch):
    near_file = tmp_path / "near.py"
    near_file.write_text("from benchmarks import far\n")
    far_file = tmp_path / "far.py"
    far_file.write_text("x = 1\n")
    source_files = {"benchmarks.near": near_file, "benchmarks.far": far_file}
    monkeypatch.setattr(cache, "_source_file", source_files.get)

    def compute_version():
        cache.code_version.cache_clear()
        return cache.code_version("benchmarks.near")

    first_version = compute_version()
    far_file.write_text('"""Docstring."""\nx = 1  # comment\n')
    assert compute_version() == first_version
    far_file.write_text("x = 2\n")
    assert compute_version() != first_version
    cache.code_version.cache_clear()


def test_source_of_an_exported_name_is_its_defining_module():
    assert cache._source_file("gatewise_training.StagedCascade").name == "staged.py"
    assert cache._source_file("gatewise_training.methods").name == "methods.py"
    assert cache._source_file("gatewise_training.nothing") is None
    assert cache._source_file("gatewise_training") is None


def test_code_of_a_peer_excludes_the_project_systems(monkeypatch):
    source_files = []
    find_source_file = cache._source_file

    def record_source_file(name):
        source_files.append(find_source_file(name))
        return source_files[-1]

    monkeypatch.setattr(cache, "_source_file", record_source_file)
    cache.code_version.cache_clear()
    cache.code_version("benchmarks.comparison.peer_cegb")
    file_names = {path.name for path in source_files if path}
    assert {"peer_cegb.py", "boosters.py", "record.py", "validation_split.py"} <= file_names
    assert not file_names & {"__init__.py", "staged.py", "thresholds.py", "peer_catboost.py"}
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
        assert method_figures["at_budgets"][-1]["cost"]["mean"] <= 30  # all features
    assert "## breast_cancer" in (tmp_path / "out" / "adapt.md").read_text()
    assert (tmp_path / "out/adapt/breast_cancer.svg").read_text().startswith("<?xml")
