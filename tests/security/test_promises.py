"""Each promise of SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_is_held_by_tests_that_exist():
    text = (ROOT / "SECURITY.md").read_text()
    table = text[text.index("## Promises") : text.index("## Known limits")]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    for _, promise_owner, test_cells in rows:
        assert promise_owner.strip()
        names = re.findall(r"`([^`]+)`", test_cells)
        assert names
        for name in names:
            path, _, test = name.partition("::")
            if name.startswith("make "):
                assert f"\n{name.removeprefix('make ')}:" in (ROOT / "Makefile").read_text()
                continue
            assert (ROOT / "tests" / path).exists(), path
            assert not test or f"def {test}(" in (ROOT / "tests" / path).read_text(), name
