"""Tests that mutants replace their module and are killed by its tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed (pip install cosmic-ray)")

from benchmarks.mutants import ROOT, TARGETS, mutants_of

#: A module with fast tests.
BREAKER = "edge/gatewise_edge/link/breaker.py"


def test_every_module_and_its_tests_exist():
    for module, tests in TARGETS.items():
        assert (ROOT / module).is_file(), module
        assert (ROOT / tests).is_file(), tests


@pytest.mark.slow
def test_mutant_changes_one_line():
    source_lines = (ROOT / BREAKER).read_text().splitlines()
    mutants = mutants_of(BREAKER)
    assert len(mutants) > 20  # the operators found places to change
    for mutant in mutants:
        mutated_lines = mutant.source.splitlines()
        line_pairs = zip(source_lines, mutated_lines, strict=True)
        changed_lines = [
            number
            for number, (line, mutated_line) in enumerate(line_pairs, 1)
            if line != mutated_line
        ]
        assert changed_lines == [mutant.line]


@pytest.mark.slow
def test_unchanged_module_survives_and_broken_module_does_not():
    """Run in a new process that has not loaded the module."""
    assert _test_survival(BREAKER) == ["True", "False"]


@pytest.mark.slow
def test_broken_module_without_shared_fixtures_does_not_survive():
    assert _test_survival("gatewise/acquisition.py") == ["True", "False"]


def _test_survival(module: str) -> list[str]:
    """Test in a new process whether the unchanged module and the broken module survive."""
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
