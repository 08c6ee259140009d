"""Mutants are loaded in place of the module, and judged by its own tests."""

from __future__ import annotations

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed (pip install cosmic-ray)")

from benchmarks.mutants import ROOT, TARGETS, Mutant, mutants_of, survives

BREAKER = "edge/gatewise_edge/link/breaker.py"


def test_every_module_and_its_tests_exist():
    for module, tests in TARGETS.items():
        assert (ROOT / module).is_file(), module
        assert (ROOT / tests).is_file(), tests


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
    source = (ROOT / BREAKER).read_text()
    assert survives(Mutant(BREAKER, "", 0, "", "", source), TARGETS[BREAKER])
    broken = Mutant(BREAKER, "", 0, "", "", source + "\nraise ValueError\n")
    assert not survives(broken, TARGETS[BREAKER])
