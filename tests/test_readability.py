"""Test that counts of unclear names and sentences stay within their bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READABILITY_TOOL = ROOT.parent / "shared" / "tools" / "readability.py"

#: Largest allowed values: a little above those of the code today, so that no change makes them
#: worse unnoticed.
BOUNDS = {
    "empty names, % of assigned names": 2.5,
    "tuple packing per 1,000 lines": 3.0,
    "calls with 7 or more positional arguments": 0,
    "functions of more than 12 parameters": 6,
    "functions of more than 60 lines": 15,
    "untyped or Any parameters, %": 8.0,
    "'fmt: skip'": 40,
    "docstrings of one or two words": 0,
    "odd patterns per 10,000 words, code": 25.0,
    "odd patterns per 10,000 words, documentation": 25.0,
}
#: Smallest share of comment lines in %, a little below that of the code today.
MIN_COMMENT_PERCENT = 1.5


@pytest.mark.slow
def test_readability_figures_are_within_bounds():
    if not READABILITY_TOOL.is_file():
        pytest.skip("../shared/tools/readability.py does not exist")
    command = [sys.executable, str(READABILITY_TOOL), str(ROOT), "--json"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode in (0, 1), process.stderr  # 1 if its own bounds are exceeded
    figures = json.loads(process.stdout)
    exceeded_bounds = {
        name: figures[name] for name, bound in BOUNDS.items() if figures[name] > bound
    }
    assert not exceeded_bounds
    assert figures["comment lines, % of lines"] >= MIN_COMMENT_PERCENT
