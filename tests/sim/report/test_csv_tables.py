"""Tables of a run as CSV."""

from __future__ import annotations

import csv
import io

import pytest

from gatewise_sim.report.output import to_csv
from gatewise_sim.report.run_page import csv_files
from tests.sim.report.reports import made_up


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_report_comes_back_from_its_csv_files():
    report = made_up(money=30.0)
    files = csv_files(report)
    assert set(files) == {"legs.csv", "timeline.csv", "classes.csv"}
    for row, policy in zip(read(files["legs.csv"]), report.policies, strict=True):
        assert row["key"] == policy.key
        assert float(row["accuracy"]) == policy.accuracy.value
        assert float(row["latency_ms_p95_high"]) == policy.latency_ms["p95"].high
        assert int(row["answers_fallback"]) == policy.answers.fallback
        assert float(row["money_total"]) == policy.money.total
        assert not any(name.startswith("histogram") for name in row)
    timeline = read(files["timeline.csv"])
    assert sum(float(row["fallback"]) for row in timeline) == 40.0
    classes = read(files["classes.csv"])
    assert len(classes) == len(report.classes)
    assert classes[5]["accuracy"] == ""


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("=HYPERLINK(0)", "'=HYPERLINK(0)"),
        ("+1+1", "'+1+1"),
        ("-x", "'-x"),
        ("@SUM", "'@SUM"),
        ("\t=1", "'\t=1"),
        ("-1.5", "-1.5"),
        (-1.5, "-1.5"),
        ("a=b", "a=b"),
    ],
)
def test_no_text_is_a_formula_to_a_spreadsheet(label, written):
    assert to_csv([{"class": label}]) == f"class\n{written}\n"
