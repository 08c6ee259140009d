import csv
import io

import pytest

from gatewise_sim.report.tables import csv_files, to_csv


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_figures_with_intervals_take_three_columns_and_what_is_nested_its_path():
    leg = {
        "key": "system",
        "accuracy": {"value": 0.9, "low": 0.8, "high": 1.0},
        "latency_ms": {"p50": {"value": 1.0, "low": 0.5, "high": 2.0}},
        "joules": {"radio": 3.5},
        "money": None,
        "histogram": {"edges_ms": [1, 2]},
    }
    files = csv_files({"legs": [leg], "timeline": [], "classes": [{"label": 'a,"b', "n": None}]})
    assert set(files) == {"legs.csv", "timeline.csv", "classes.csv"}
    assert read(files["legs.csv"]) == [
        {
            "key": "system",
            "accuracy": "0.9",
            "accuracy_low": "0.8",
            "accuracy_high": "1.0",
            "latency_ms_p50": "1.0",
            "latency_ms_p50_low": "0.5",
            "latency_ms_p50_high": "2.0",
            "joules_radio": "3.5",
            "money": "",
        }
    ]
    assert read(files["classes.csv"]) == [{"label": 'a,"b', "n": ""}]
    assert read(files["timeline.csv"]) == []


def test_rows_of_different_columns_share_one_header():
    assert to_csv([{"a": 1}, {"b": 2}]) == "a,b\n1,\n,2\n"


@pytest.mark.slow  # it fits a model
def test_a_real_report_comes_back_from_its_tables(simulated):
    report = simulated(outages="cloud:+200s-+320s")
    files = csv_files(report)
    legs = read(files["legs.csv"])
    assert [row["key"] for row in legs] == [leg["key"] for leg in report["legs"]]
    for row, leg in zip(legs, report["legs"], strict=True):
        assert float(row["accuracy"]) == leg["accuracy"]["value"]
        assert float(row["latency_ms_p95_high"]) == leg["latency_ms"]["p95"]["high"]
        assert int(row["answers_fallback"]) == leg["answers"]["fallback"]
    timeline = read(files["timeline.csv"])
    assert sum(float(row["fallback"]) for row in timeline) == pytest.approx(
        report["answers"]["fallback"]
    )
    assert len(read(files["classes.csv"])) == len(report["classes"])
