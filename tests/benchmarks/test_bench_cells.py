"""Tests that cells are cached, resumed after an interruption, and keyed by all their inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_adapt, cache
from benchmarks.comparison import cells, peers
from benchmarks.comparison.cells import Cell, Settings

ROOT = Path(__file__).parents[2]
#: Settings of a run that takes seconds: three models per sweep, and two folds.
QUICK_SETTINGS = Settings(quick=True, max_fits=3)


@pytest.fixture
def fresh_code_versions():
    """Empty cache of the hashes of code, so that a test with other source files changes no test."""
    cache.code_version.cache_clear()
    yield
    cache.code_version.cache_clear()


@pytest.mark.slow
def test_cell_is_run_once_and_then_read_from_the_cache(tmp_path, monkeypatch):
    cell = Cell("breast_cancer", "static", 0)
    record = cells.run_cell(cell, QUICK_SETTINGS, tmp_path)
    assert record["folds"][0]["points"]
    monkeypatch.setattr(peers, "run_method", lambda *_: pytest.fail("the cell was run again"))
    assert cells.run_cell(cell, QUICK_SETTINGS, tmp_path) == record


@pytest.mark.slow
def test_interrupted_run_continues_with_the_missing_cells(tmp_path, monkeypatch):
    # Cells of "static" run first, because other cells reuse its models.
    finished_cell = Cell("breast_cancer", "static", 0)
    interrupted_cell = Cell("breast_cancer", "cegb-coupled", 0)
    planned_cells = [finished_cell, interrupted_cell]
    run_method = peers.run_method

    def run_or_interrupt(method, task):
        if method == interrupted_cell.method:
            raise KeyboardInterrupt  # as by Ctrl-C
        return run_method(method, task)

    monkeypatch.setattr(peers, "run_method", run_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cells(planned_cells, QUICK_SETTINGS, cache=tmp_path)
    assert finished_cell.file(QUICK_SETTINGS, tmp_path).is_file()
    assert not interrupted_cell.file(QUICK_SETTINGS, tmp_path).is_file()
    assert not list(tmp_path.glob("*.part"))  # no file that was not written completely

    monkeypatch.setattr(peers, "run_method", run_method)
    report_lines: list[str] = []
    cells.run_cells(planned_cells, QUICK_SETTINGS, cache=tmp_path, report=report_lines.append)
    assert report_lines[0] == "1 of 2 cells are in the cache"
    assert len(report_lines) == 2  # the other line is about the one cell that was run


def test_key_changes_with_settings_seed_and_code(monkeypatch):
    cell = Cell("breast_cancer", "cegb-coupled", 0)
    key = cell.key(QUICK_SETTINGS)
    assert cell.key(QUICK_SETTINGS) == key
    assert cell.key(Settings(quick=True, max_fits=4)) != key
    assert Cell("breast_cancer", "cegb-coupled", 1).key(QUICK_SETTINGS) != key
    monkeypatch.setattr(peers, "code_version", lambda _module: "hash of other code")
    assert cell.key(QUICK_SETTINGS) != key


@pytest.mark.usefixtures("fresh_code_versions")
def test_code_version_includes_imported_modules(tmp_path, monkeypatch):
    importing_file = tmp_path / "importing.py"
    importing_file.write_text("from benchmarks import imported\n")
    imported_file = tmp_path / "imported.py"
    imported_file.write_text("x = 1\n")
    source_file_of_module = {
        "benchmarks.importing": importing_file,
        "benchmarks.imported": imported_file,
    }
    monkeypatch.setattr(cache, "_source_file", source_file_of_module.get)

    def compute_version():
        cache.code_version.cache_clear()
        return cache.code_version("benchmarks.importing")

    version = compute_version()
    imported_file.write_text('"""Docstring."""\nx = 1  # comment\n')
    assert compute_version() == version
    imported_file.write_text("x = 2\n")
    assert compute_version() != version
    importing_file.write_text("from . import imported\n")  # whose code would not be included
    with pytest.raises(ValueError, match=r"importing\.py, line 1: write the import with"):
        compute_version()


def test_source_of_an_exported_name_is_its_defining_module():
    assert cache._source_file("gatewise_training.StagedCascade").name == "staged.py"
    assert cache._source_file("gatewise_training.methods").name == "methods.py"
    assert cache._source_file("gatewise_training.nothing") is None
    # A package only exports names of its modules.
    assert cache._source_file("gatewise_training") is None


@pytest.mark.usefixtures("fresh_code_versions")
def test_code_of_a_peer_excludes_the_project_systems(monkeypatch):
    source_files = []
    find_source_file = cache._source_file

    def record_source_file(name):
        source_files.append(find_source_file(name))
        return source_files[-1]

    monkeypatch.setattr(cache, "_source_file", record_source_file)
    cache.code_version("benchmarks.comparison.peer_cegb")
    file_names = {path.name for path in source_files if path}
    # Modules of the peer, and those that it imports directly and indirectly.
    assert {"peer_cegb.py", "boosters.py", "record.py", "validation_split.py"} <= file_names
    # A change of the project's own methods must not run the peers again.
    assert not file_names & {"__init__.py", "staged.py", "thresholds.py", "peer_catboost.py"}


@pytest.mark.slow
def test_quick_run_writes_figures_page_and_plot(tmp_path, monkeypatch):
    """With a method of a user, the example of the docs."""
    own_method = f"{ROOT / 'examples/own_method.py'}:Trees"
    # Shorter than a quick run: three models per sweep, and 120 rows of one fold.
    monkeypatch.setattr(Settings, "n_fits", 3)
    monkeypatch.setattr(
        Settings, "folds", lambda _, problem, seed: [problem.make_folds(seed)[0].sample(120)]
    )
    arguments = [
        "--quick", "--only", "breast_cancer", "--methods", "staged,f0,two-stage,cegb-lazy",
        "--add", own_method, "--jobs", "1", "--cache", str(tmp_path / "cache"),
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert bench_adapt.main(arguments) == 0
    summary = json.loads((tmp_path / "out/adapt/breast_cancer.json").read_text())
    assert set(summary["methods"]) == {"staged", "f0", "two-stage", "cegb-lazy", own_method}
    assert len(summary["budgets"]) == 12  # the default of Problem.budgets
    assert set(summary["against"]) == {"f0", "two-stage", "cegb-lazy", own_method}
    for method_figures in summary["methods"].values():
        assert 0 <= method_figures["within_1"]["cut"]["mean"] <= 1
        assert method_figures["at_budgets"][-1]["cost"]["mean"] <= 30  # features at price 1
    page = (tmp_path / "out" / "adapt.md").read_text()
    assert "## breast_cancer" in page
    assert f"| {own_method} |" in page
    assert (tmp_path / "out/adapt/breast_cancer.svg").read_text().startswith("<?xml")
