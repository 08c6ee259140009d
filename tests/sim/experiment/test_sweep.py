"""Tests of sweeps: parsed settings, CSV file, plot and interruptions."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from gatewise.console import showing_progress
from gatewise_sim.experiment import sweep
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.experiment.sweep import CSV_FILE, PLOT_FILE, read_sweeps, run_sweep, show_table
from gatewise_sim.scenario import Scenario
from tests.support.refused import assert_refused

# fleets are simulated
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_timings")]


@pytest.fixture(scope="module")
def job(digits, tmp_path_factory):
    """A brief simulation of the small system on few rows."""
    table_path = tmp_path_factory.mktemp("sweep") / "rows.csv"
    table_lines = digits.table.read_text().splitlines(keepends=True)
    table_path.write_text("".join(table_lines[:51]))
    scenario = Scenario(time="2min", workload="poisson:6/min")
    return Job(str(digits.bundle.path), str(table_path), None, scenario)


def test_each_combination_has_a_row_a_point_and_a_line(job, tmp_path, capsys):
    values_by_setting = read_sweeps(["devices=5,10", "link=wifi,3g"])
    with showing_progress():
        rows = run_sweep(job, values_by_setting, tmp_path)
    assert [(row["devices"], row["link"]) for row in rows] == [
        ("5", "wifi"), ("5", "3g"), ("10", "wifi"), ("10", "3g"),
    ]  # fmt: skip
    with (tmp_path / CSV_FILE).open() as file:
        assert list(csv.DictReader(file)) == rows
    assert "<svg" in (tmp_path / PLOT_FILE).read_text()
    p95_by_link = {row["link"]: float(row["p95_ms"]) for row in rows if row["devices"] == "10"}
    # 3G has a round trip more than ten times as long
    assert p95_by_link["3g"] > 10 * p95_by_link["wifi"]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]  # a link changes no answer here
    show_table(rows, values_by_setting, tmp_path)
    output, progress_text = capsys.readouterr()
    assert "sweep: 50% devices=10, link=wifi" in progress_text
    assert "simulate" not in progress_text
    assert "p95 ms" in output
    assert "money" not in output  # no prices are set
    assert output.splitlines()[-1] == str(tmp_path / PLOT_FILE)


def test_axes_of_the_plot_start_at_0_or_above(tmp_path, monkeypatch):
    axis_limits = []

    def record_limits(figure, *_, **__):
        axis_limits.append((figure.axes[0].get_xlim(), figure.axes[0].get_ylim()))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", record_limits)
    row = {"devices": "5", "cost": "0", "p95_ms": "0.01"}
    sweep._draw_plot([row | {"accuracy": "1"}], {"devices": ("5",)}, tmp_path / "a.svg")
    sweep._draw_plot([row | {"accuracy": ""}], {"devices": ("5",)}, tmp_path / "a.svg")
    assert all(lower_limit == 0.0 for (lower_limit, _), _ in axis_limits)
    (_, (_, accuracy_top)), (_, (latency_bottom, _)) = axis_limits
    assert accuracy_top == 1.0
    assert latency_bottom >= 0.0


def test_interrupted_sweep_continues(job, tmp_path):
    (first_row,) = run_sweep(job, read_sweeps(["devices=5"]), tmp_path)
    values_by_setting = read_sweeps(["devices=5,6"])
    rows = run_sweep(job, values_by_setting, tmp_path)
    # a killed sweep may leave an incomplete row, which is repeated
    csv_file, plot_file = tmp_path / CSV_FILE, tmp_path / PLOT_FILE
    csv_text, plot_bytes = csv_file.read_text(), plot_file.read_bytes()
    assert run_sweep(job, values_by_setting, tmp_path) == rows
    assert (csv_file.read_text(), plot_file.read_bytes()) == (csv_text, plot_bytes)
    csv_file.write_text(csv_text[:-20])
    repeated_rows = run_sweep(job, values_by_setting, tmp_path)
    assert repeated_rows[0] == rows[0] == first_row
    assert [row["devices"] for row in repeated_rows] == ["5", "6"]
    with csv_file.open() as file:
        assert list(csv.DictReader(file)) == repeated_rows
    assert_refused(
        run_sweep, job, read_sweeps(["link=wifi"]), tmp_path, message="belongs to another sweep"
    )


def test_sweep_with_another_setting_or_bundle_does_not_continue(job, tmp_path):
    values_by_setting = read_sweeps(["devices=5"])
    run_sweep(job, values_by_setting, tmp_path)
    csv_text = (tmp_path / CSV_FILE).read_text()
    slower_job = replace(job, scenario=job.scenario.changed(link="3g", time="3min"))
    assert_refused(
        run_sweep, slower_job, values_by_setting, tmp_path, message="another time and link"
    )
    shorter_table = tmp_path / "rows.csv"
    table_lines = Path(job.data).read_text().splitlines(keepends=True)
    shorter_table.write_text("".join(table_lines[:-1]))
    other_job = replace(job, data=str(shorter_table))
    assert_refused(run_sweep, other_job, values_by_setting, tmp_path, message="another rows")
    assert (tmp_path / CSV_FILE).read_text() == csv_text
    (tmp_path / sweep.ORIGIN_FILE).unlink()
    assert_refused(run_sweep, job, values_by_setting, tmp_path, message="another sweep")


def test_failed_point_has_its_error_and_is_repeated(job, tmp_path):
    values_by_setting = read_sweeps(["budget=0.0001,60"])
    rows = run_sweep(job, values_by_setting, tmp_path)
    assert "no operating point costs at most" in rows[0]["error"]
    assert rows[1]["error"] == ""
    repeated_rows = run_sweep(job, values_by_setting, tmp_path)
    assert [row["budget"] for row in repeated_rows] == ["60", "0.0001"]
    lines = (tmp_path / CSV_FILE).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["budget", "60", "0.0001"]


def test_an_outage_needs_as_many_workers_in_its_own_point(job, tmp_path):
    job = replace(job, scenario=job.scenario.changed(outage=("workers:2:+10s-+20s",)))
    one_worker, two_workers = run_sweep(job, read_sweeps(["workers=1,2"]), tmp_path)
    assert one_worker["error"] == "outage of 2 workers: the fleet has only 1 (--workers)"
    assert two_workers["error"] == ""


@pytest.mark.parametrize(
    ("text", "values_by_setting"),
    [
        ("devices=10,100", {"devices": ("10", "100")}),
        ("deadline-ms=10", {"deadline_ms": ("10",)}),
        (
            "outage=none|cloud:+1s-+2s,link:+3s-+4s",
            {"outage": ("none", "cloud:+1s-+2s,link:+3s-+4s")},
        ),
        ("budget=none,5,5", {"budget": ("none", "5")}),
        ("tls=true,false", {"tls": ("true", "false")}),
    ],
)
def test_sweeps_are_parsed(text, values_by_setting):
    assert read_sweeps([text]) == values_by_setting


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["devices"], "write it as devices=10,100,1000"),
        (["device=3"], "unknown setting 'device', did you mean 'devices'?"),
        (["engine=live"], "unknown setting 'engine'"),
        (["devices=many"], "'many' is not a value of this setting"),
        (["devices=0"], "sweep devices: devices: must be a whole number of at least 1"),
        (["link=pigeon"], "sweep link: unknown link 'pigeon'"),
        (["devices=none"], "'none' is not a value"),
        (["budget=1", "max_loss=0.1"], "each choose the operating point"),
        ([f"seed={','.join(map(str, range(40)))}", f"devices={','.join(map(str, range(1, 41)))}"],
         "1,600 points; at most 1,000"),
    ],
)  # fmt: skip
def test_invalid_sweep_is_refused(texts, message):
    assert_refused(read_sweeps, texts, message=message)
