"""Tests of the comparison of reports, and of errors for files that are not reports."""

from __future__ import annotations

import json

import pytest

from gatewise import cli
from gatewise.errors import InputError
from gatewise_sim.report.report_command import read_report
from gatewise_sim.report.tables import comparison_table
from tests.sim.report.reports import make_report


def write_report(folder, name, report):
    """Write a report into a new folder; return the folder."""
    (folder / name).mkdir()
    (folder / name / "report.json").write_text(report.to_json())
    return folder / name


def test_report_is_read_from_its_file_or_folder(tmp_path):
    folder = write_report(tmp_path, "one", make_report())
    assert read_report(folder) == read_report(folder / "report.json") == make_report()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"kind": "other"}'])
def test_error_names_a_file_that_is_not_a_report(tmp_path, text):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"report\.json"):
        read_report(path)


def test_table_has_figures_and_different_settings():
    wifi_report = make_report(settings={"link": "wifi", "devices": 20})
    lte_report = make_report(settings={"link": "4g", "devices": 20})
    rows = {row[0]: row[1:] for row in comparison_table(["a", "b"], [wifi_report, lte_report]).rows}
    assert rows["link"] == ["wifi", "4g"]
    assert "devices" not in rows
    wifi_accuracy, lte_accuracy = rows["accuracy"]
    assert wifi_accuracy == lte_accuracy
    assert " to " in wifi_accuracy[1]  # the interval


def test_command_prints_one_table_or_json(tmp_path, capsys):
    folders = [str(write_report(tmp_path, name, make_report())) for name in ("one", "two")]
    assert cli.main(["report", *folders]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert cli.main(["report", *folders, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [report["dataset"] for report in document["reports"]] == ["rows", "rows"]
    assert cli.main(["report", folders[0]]) == 0
    assert "All cloud" in capsys.readouterr().out
