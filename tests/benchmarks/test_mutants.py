"""Mutants are loaded in place of the module, and judged by its own tests."""

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
def test_a_mutant_changes_one_line():
    source = (ROOT / BREAKER).read_text().splitlines()
    mutants = mutants_of(BREAKER)
    assert len(mutants) > 20
    for mutant in mutants:
        changed = mutant.source.splitlines()
        lines = [n for n, (a, b) in enumerate(zip(source, changed, strict=True), 1) if a != b]
        assert lines == [mutant.line]


@pytest.mark.slow
def test_the_module_survives_unchanged_and_dies_broken():
    """In a process of its own, in which nothing has loaded the module."""
    assert _survivals(BREAKER) == ["True", "False"]


@pytest.mark.slow
def test_a_module_that_no_shared_fixture_loads_dies_broken():
    assert _survivals("gatewise/acquisition.py") == ["True", "False"]


def _survivals(module: str) -> list[str]:
    """Whether a module survives as it is, and broken."""
    script = (
        "from benchmarks.mutants import ROOT, TARGETS, Mutant, survives\n"
        f"module = {module!r}\n"
        "source = (ROOT / module).read_text()\n"
        "for text in (source, source + '\\nraise ValueError\\n'):\n"
        "    print(survives(Mutant(module, '', 0, '', '', text), TARGETS[module]))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()
