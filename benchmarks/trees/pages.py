"""Page of budgeted trees, from trees.json and the figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.trees.sections import adapt, budgetrf, cegb, pruning, timing

#: Functions that write the section of each part, in the order of the page.
#:
#: Arguments are the figures of the part, and those of all parts.
SECTION_WRITERS = {
    "timing": timing.write_section,
    "budgetrf": budgetrf.write_section,
    "pruning": pruning.write_section,
    "cegb": cegb.write_section,
    "adapt": adapt.write_section,
}


def page(document: Mapping[str, Any]) -> list[str]:
    """Write the page from the content of trees.json."""
    parts = document["parts"]
    lines = [
        "# Budgeted trees",
        "",
        "`make bench-trees` writes this page; all figures and settings are in `trees.json`. "
        "Validation rows choose every operating point, and test rows are only reported. All "
        "measurements have one thread, and times are CPU seconds. [Smaller tables and "
        "figures](trees_further.md) were measured once.",
    ]
    for name, write_section in SECTION_WRITERS.items():
        if name not in parts:
            lines += ["", f"The part `{name}` has not been run."]
            continue
        lines += ["", *write_section(parts[name], parts)]
        if parts[name]["quick"]:
            lines += ["", "This was a quick run on few rows."]
    versions = {
        f"{package} {version}"
        for part in parts.values()
        for package, version in part["versions"].items()
    }
    return [*lines, "", "Versions: " + ", ".join(sorted(versions)) + "."]
