"""Tests of the tables of a run, for the page and the terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gatewise_sim.report import tables
from gatewise_sim.report.document import StageResult
from gatewise_sim.report.tables import print_report
from tests.sim.report.reports import live, made_up


def cells(table) -> dict[str, list]:
    """Get the cells of a table by the first cell of each row."""
    return {row[0]: list(row[1:]) for row in table.rows}


def test_policy_table_has_figures_with_intervals():
    rows = cells(tables.policy_table(made_up()))
    assert rows["accuracy"][0] == ("90.0 %", "89.0 to 91.0 %")
    assert rows["offloaded"][1] == "0 %"  # an interval of zero width is omitted
    assert rows["workers busy"][0] == "10.0 %"
    assert "battery, days" not in rows
    assert "engine" not in rows
    assert cells(tables.policy_table(live()))["engine"][:2] == ["live", "virtual"]


def test_answers_are_counted_by_route_reason_and_worker():
    routes, reasons, workers = tables.answer_tables(made_up())
    assert list(routes.columns) == ["", "edge", "cloud", "fallback", "late", "lost", "retries"]
    assert cells(routes)["Gatewise"] == ["800", "190", "10", "5", "0", "10"]
    assert cells(reasons)["the cloud answered"] == ["190", "19.00 %"]
    assert cells(workers)["All cloud"] == ["10.0 %", "2", "1.5 ms"]


@pytest.mark.parametrize("money", [None, 30.0])
def test_spending_table_has_only_nonzero_parts(money):
    rows = cells(tables.spending_table(made_up(money=money)))
    assert rows["energy: radio"][:2] == ["1 J", "0 J"]
    assert rows["bytes: request"][:2] == ["90", "0"]
    assert rows["ms: network"][:3] == ["8", "0", "40"]
    bill_rows = [name for name in rows if "a month" in name]
    assert bill_rows == (["EUR a month: data", "EUR a month: workers"] if money else [])


def test_class_table_has_the_recall_with_and_without_the_cloud():
    rows = cells(tables.class_table(made_up().system.classes[:2]))
    assert rows["kind 1"] == ["200", "10.0 %", "94.0 %", "85.0 %", "n/a"]


def test_stage_table_lists_new_columns():
    names = tuple(f"f{k}" for k in range(20))
    stage = StageResult(
        name="stage 0", columns=20, acquires=names, price=20.0, answers=5, share=0.5
    )
    (row,) = tables.stage_table(made_up(stages=(stage,))).rows
    assert row[1] == ("5", "50.0 %")
    assert row[-1].endswith("f13 and 6 more")


def test_recalls_of_the_operating_point_name_the_classes():
    report = made_up()
    active = replace(report.frontier.active, recall={"kind 0": 0.9, "kind 1": None})
    report = replace(report, frontier=replace(report.frontier, active=active))
    rows = cells(tables.detail_tables(report)[1])
    assert rows["operating point: recall"][0].startswith("kind 0 90.0 %, kind 1 n/a")


def test_detail_tables_have_settings_and_basis():
    data = {"rows": 1797, "features": 64}
    settings, basis = tables.detail_tables(replace(live(), data=data, seconds={"train": 12.3}))
    assert cells(settings)["seed"] == ["0"]
    rows = cells(basis)
    assert rows["data"][0].startswith("rows 1,797, features 64")
    assert rows["duration, s"] == ["train 12.3"]
    assert rows["machine"] == ["Linux x86_64"]
    assert "battery, Wh" not in rows


def test_twin_table_compares_live_and_virtual():
    assert tables.twin_table(made_up()) is None
    rows = cells(tables.twin_table(live()))
    assert rows == {
        "accuracy": ["90.00 %", "91.00 %"],
        "offload rate": ["20.00 %", "20.00 %"],
        "p95": ["50 ms", "n/a"],
    }


def test_terminal_shows_figures_summary_and_caveats(capsys):
    print_report(made_up(money=30.0))
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "1,000 instances" in out
    assert lines["accuracy"].split()[1:3] == ["90.0", "%"]
    assert lines["EUR a month"].split()[3:5] == ["30", "24"]
    assert "lost" not in lines
    assert "offloading every instance" in out
    assert "Assumed, not measured" in out
