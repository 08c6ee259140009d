"""Mutants replace their module and are killed by its tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed (pip install cosmic-ray)")

from benchmarks.mutants import ROOT, TARGETS, mutants_of

BREAKER = "edge/gatewise_edge/link/breaker.py"


def test_every_module_and_its_tests_exist():
    for module, tests in TARGETS.items():
        assert (ROOT / module).is_file(), module
        assert (ROOT / tests).is_file(), tests


@pytest.mark.slow
def test_mutant_changes_one_line():
    source = (ROOT / BREAKER).read_text().splitlines()
    mutants = mutants_of(BREAKER)
    assert len(mutants) > 20
    for mutant in mutants:
        mutated_lines = mutant.source.splitlines()
        lines = [n for n, (a, b) in enumerate(zip(source, mutated_lines, strict=True), 1) if a != b]
        assert lines == [mutant.line]


@pytest.mark.slow
def test_unchanged_module_survives_and_broken_module_does_not():
    """Run in a new process that has not loaded the module."""
    assert _survival_texts(BREAKER) == ["True", "False"]


@pytest.mark.slow
def test_broken_module_without_shared_fixtures_does_not_survive():
    assert _survival_texts("gatewise/acquisition.py") == ["True", "False"]


def _survival_texts(module: str) -> list[str]:
    """Whether the unchanged module and the broken module survive."""
    script = (
        "from benchmarks.mutants import ROOT, TARGETS, Mutant, survives\n"
        f"module = {module!r}\n"
        "source = (ROOT / module).read_text()\n"
        "for text in (source, source + '\\nraise ValueError\\n'):\n"
        "    print(survives(Mutant(module, '', 0, '', '', text), TARGETS[module]))\n"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return process.stdout.split()
