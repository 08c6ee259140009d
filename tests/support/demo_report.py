"""Checks of a demo's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.sensors.table import read_table
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.experiment.run import run_scenario
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.report.output import DEMO
from gatewise_sim.scenario import Scenario


def check_report(report: dict[str, Any]) -> None:
    """Check the report of a run without failures."""
    for policy in report["latency_ms"].values():
        assert 0 < policy["p50"] <= policy["p95"] <= policy["p99"]
    answer_counts = report["answers"]
    assert answer_counts["lost"] == answer_counts["fallback"] == answer_counts["late"] == 0
    assert (
        answer_counts["edge"] + answer_counts["cloud"]
        == report["instances"]
        == report["data"]["test_rows"]
    )
    # Each answer equals that of the bundle, which training has compared with the estimator.
    assert report["checked"]["compared"] == report["instances"]
    assert set(report["checked"]["differing"].values()) == {0}
    feature_cost = report["feature_cost"]
    assert report["cost_reduction"] == 1 - feature_cost["system"] / feature_cost["cloud_only"]
    assert sum(stage["answers"] for stage in report["stages"]) == report["instances"]


def check_default_demo(folder: Path, printed: str) -> None:
    """Check the files and the output of ``gatewise demo`` with its defaults."""
    assert {file.name for file in folder.iterdir()} == set(DEMO.files)
    report = json.loads((folder / "report.json").read_text())
    check_report(report)
    assert report["transport"] == {"kind": "mqtt", "broker": "mosquitto", "link": "wifi"}
    assert report["accuracy"]["cloud_only"] > 0.98  # nearly all digits
    # the default bound of 0.005, and two standard errors of about 0.005 each on the test rows
    assert report["accuracy"]["system"] >= report["accuracy"]["cloud_only"] - 0.015
    assert report["cost_reduction"] >= 0.5
    assert f"{folder.name}/report.html" in printed
    assert report["command"] in (folder / "report.html").read_text()

    # The bundle answers the instances with the reported cost.
    bundle = Bundle.open(folder / "bundle")
    assert bundle.manifest.feature_names[:2] == ("pixel_0_0", "pixel_0_1")
    table = read_table(folder / "instances.csv", bundle.manifest.feature_names)
    rows = np.asarray(table.rows, np.float32)
    assert table.ignored_columns == ("label",)
    with Device(bundle, policy="edge-only") as device:
        answers = [device.answer(row) for row in rows]
    mean_cost = sum(answer.cost for answer in answers) / len(rows)
    assert mean_cost == pytest.approx(report["feature_cost"]["edge_only"], rel=1e-12)
    # A simulation of the same arrivals gives the same answers.
    scenario = Scenario(workload=f"replay:{folder / 'arrivals.csv'}", devices=4, time="60s")
    job = Job(str(folder / "bundle"), str(folder / "instances.csv"), scenario=scenario)
    simulation = run_scenario(job.prepare(), job.command())
    assert simulation.instances == report["instances"]
    assert simulation.accuracy == report["accuracy"]
