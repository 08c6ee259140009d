"""Tests that each promise of SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_is_held_by_tests_that_exist():
    page = (ROOT / "SECURITY.md").read_text()
    table = page[page.index("## Promises") : page.index("## Known limits")]
    # without the header and the line below it
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20  # the table was found
    for _, promise_owner, test_cells in rows:
        assert promise_owner.strip()
        names = re.findall(r"`([^`]+)`", test_cells)
        assert names
        for name in names:
            path, _, test_name = name.partition("::")
            if name.startswith("make "):
                assert f"\n{name.removeprefix('make ')}:" in (ROOT / "Makefile").read_text()
                continue
            assert (ROOT / "tests" / path).exists(), path
            assert not test_name or f"def {test_name}(" in (ROOT / "tests" / path).read_text(), name
