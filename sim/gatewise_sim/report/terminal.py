"""A run on a terminal: the policies as a table, the answer and its caveats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gatewise.console import emit
from gatewise.formats import count
from gatewise_sim.report.findings import answer, audit_findings, caveats
from gatewise_sim.report.model import Report
from gatewise_sim.report.tables import policy_table, print_table


def show_run(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print a run and the path of its page in `folder`, as JSON or for people."""
    if as_json:
        emit(report.to_dict())
    else:
        print_report(report)
        print(folder / "report.html", flush=True)


def print_report(report: Report) -> None:
    """Print what a run found."""
    found = policy_table(report)
    rows = [row for row in found.rows if row[0] != "engine"]
    for route in ("edge", "cloud", "fallback", "error", "lost"):
        counts = [getattr(policy.answers, route) for policy in report.policies]
        if any(counts) or route in ("edge", "cloud", "fallback"):
            name = f"answered by {route}" if route not in ("error", "lost") else route
            rows.append([name, *map(count, counts)])
    print(f"{report.method}: {report.instances:,} instances")
    print_table(replace(found, rows=rows), small=False)
    audits = filter(None, [audit_findings(report)])
    print("\n".join(["", "".join(answer(report)), *audits, *caveats(report)]))
