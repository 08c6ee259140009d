"""Summary of a run for the terminal: its figures, a sentence and the caveats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from gatewise import console
from gatewise.formats import count
from gatewise_sim.report.caveats import list_caveats
from gatewise_sim.report.document import Report
from gatewise_sim.report.findings import audit_findings, summary_sentence
from gatewise_sim.report.tables import Cell, PageTable, policy_table


def show_run(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print the report as JSON, or a summary and the path of the page in `folder`."""
    if as_json:
        console.emit(msgspec.to_builtins(report))
    else:
        print_report(report)
        print(folder / "report.html", flush=True)


def print_report(report: Report) -> None:
    """Print the figures, the summary sentence and the caveats of a run."""
    table = policy_table(report)
    rows = [row for row in table.rows if row[0] not in ("engine", "simulated")]
    for route in ("edge", "cloud", "fallback", "error", "lost"):
        n_answers = [getattr(policy.answers, route) for policy in report.policies]
        if any(n_answers) or route in ("edge", "cloud", "fallback"):
            name = f"answered by {route}" if route not in ("error", "lost") else route
            rows.append([name, *map(count, n_answers)])
    print(f"{report.method}: {report.instances:,} instances")
    print_table(replace(table, rows=rows), shows_small_text=False)
    audits = filter(None, [audit_findings(report)])
    print("\n".join(["", "".join(summary_sentence(report)), *audits, *list_caveats(report)]))


def print_table(table: PageTable, *, shows_small_text: bool = True) -> None:
    """Print a table on the terminal; the smaller text of a cell is in brackets, or left out."""
    text_rows = [
        [_format_cell(cell, shows_small_text=shows_small_text) for cell in row]
        for row in table.rows
    ]
    console.print_table("", table.columns, text_rows)


def _format_cell(cell: Cell, *, shows_small_text: bool) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell[0]} ({cell[1]})" if shows_small_text and cell[1] else cell[0]
