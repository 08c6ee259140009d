"""Tests of the tables of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gatewise_sim.report import tables
from gatewise_sim.report.document import StageResult
from tests.sim.report.reports import make_live_report, make_report


def read_cells(table) -> dict[str, list]:
    """Read the other cells of a table by the first cell of each row."""
    return {row[0]: list(row[1:]) for row in table.rows}


def test_policy_table_has_figures_with_intervals():
    rows = read_cells(tables.policy_table(make_report()))
    assert rows["accuracy"][0] == ("90.0 %", "89.0 to 91.0 %")
    assert rows["offloaded"][1] == "0 %"  # an interval of zero width is omitted
    assert rows["workers busy"][0] == "10.0 %"
    assert "battery, days" not in rows
    assert "engine" not in rows
    assert read_cells(tables.policy_table(make_live_report()))["engine"][:2] == [
        "live",
        "virtual",
    ]


def test_answers_are_counted_by_route_reason_and_worker():
    route_table, reason_table, worker_table = tables.answer_tables(make_report())
    # `make_policy_result` gives the counts of 1,000 instances.
    assert list(route_table.columns) == ["", "edge", "cloud", "fallback", "late", "lost", "retries"]
    assert read_cells(route_table)["Gatewise"] == ["800", "190", "10", "5", "0", "10"]
    assert read_cells(reason_table)["the cloud answered"] == ["190", "19.00 %"]
    assert read_cells(worker_table)["All cloud"] == ["10.0 %", "2", "1.5 ms"]


@pytest.mark.parametrize("money", [None, 30.0])
def test_spending_table_has_only_nonzero_parts(money):
    rows = read_cells(tables.spending_table(make_report(money=money)))
    assert rows["energy: radio"][:2] == ["1 J", "0 J"]
    assert rows["bytes: request"][:2] == ["90", "0"]
    assert rows["ms: network"][:3] == ["8", "0", "40"]
    bill_rows = [name for name in rows if "a month" in name]
    assert bill_rows == (["EUR a month: data", "EUR a month: workers"] if money else [])


def test_spending_table_refuses_a_part_that_is_no_field(monkeypatch):
    monkeypatch.setattr(tables, "_BYTE_PARTS", ("requests",))
    with pytest.raises(AttributeError, match="requests"):
        tables.spending_table(make_report())


def test_class_table_has_the_recall_with_and_without_the_cloud():
    rows = read_cells(tables.class_table(make_report().system.classes[:2]))
    assert rows["kind 1"] == ["200", "10.0 %", "94.0 %", "85.0 %", "n/a"]


def test_stage_table_lists_new_columns():
    column_names = tuple(f"f{number}" for number in range(20))
    stage = StageResult(
        name="stage 0", columns=20, acquires=column_names, price=20.0, answers=5, share=0.5
    )
    (row,) = tables.stage_table(make_report(stages=(stage,))).rows
    assert row[1] == ("5", "50.0 %")
    assert row[-1].endswith("f13 and 6 more")  # the first 14 of 20 are listed


def test_recalls_of_the_operating_point_name_the_classes():
    report = make_report()
    active = replace(report.frontier.active, recall={"kind 0": 0.9, "kind 1": None})
    report = replace(report, frontier=replace(report.frontier, active=active))
    rows = read_cells(tables.detail_tables(report)[1])
    assert rows["operating point: recall"][0].startswith("kind 0 90.0 %, kind 1 n/a")


def test_detail_tables_have_settings_and_basis():
    data_sizes = {"rows": 1797, "features": 64}
    settings_table, basis_table = tables.detail_tables(
        replace(make_live_report(), data=data_sizes, seconds={"train": 12.3})
    )
    assert read_cells(settings_table)["seed"] == ["0"]
    rows = read_cells(basis_table)
    assert rows["data"][0].startswith("rows 1,797, features 64")
    assert rows["duration, s"] == ["train 12.3"]
    assert rows["machine"] == ["Linux x86_64"]
    assert "battery, Wh" not in rows


def test_engine_table_compares_live_and_virtual():
    assert tables.engine_table(make_report()) is None
    rows = read_cells(tables.engine_table(make_live_report()))
    assert rows == {
        "accuracy": ["90.00 %", "91.00 %"],
        "offload rate": ["20.00 %", "20.00 %"],
        "p95": ["50 ms", "n/a"],
    }
