"""A custom policy: what it gains, what the report says of it, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim import Timings, simulate

EXAMPLE = Path(__file__).parents[3] / "examples" / "link_aware.py"
RUN = {
    "devices": 20, "time": "20min", "link": "nb-iot", "deadline_ms": 1000.0,
    "workload": "poisson:6/min", "baselines": False,
    "timings": Timings(edge_ms=(0.05, 0.08), run_us=115, instance_us=29),
}  # fmt: skip


def system(small, **changes):
    return simulate(small.bundle, small.rows, small.truth, **RUN | changes).report.system


def test_the_example_gains_what_it_says(small, tmp_path, monkeypatch):
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    plain, own = system(small), system(small, policy="link_aware:decide")
    assert own.name == "link_aware:decide"
    assert abs(own.accuracy.value - plain.accuracy.value) < 0.005
    assert own.bytes.total < 10
    assert plain.bytes.total > 60
    assert own.joules_per_device_day < 0.1 * plain.joules_per_device_day
    assert own.latency_ms["p95"].value < 1 < 990 < plain.latency_ms["p95"].value


def as_the_thresholds(point):
    return "stop" if point.stops else "continue"


def test_one_that_decides_as_the_thresholds_changes_no_figure(small):
    changes = {"link": "4g", "deadline_ms": 500.0}
    plain = system(small, **changes)
    own = system(small, policy=as_the_thresholds, **changes)
    assert own.answers == plain.answers
    assert own.bytes == plain.bytes
    assert own.latency_ms == plain.latency_ms
    assert own.cost.value == pytest.approx(plain.cost.value, rel=1e-12)
    assert own.accuracy == plain.accuracy
    assert plain.offload_rate.value == own.offload_rate.value > 0.05


def test_the_report_compares_it_with_the_operating_point(small):
    report = simulate(
        small.bundle, small.rows, small.truth, policy=as_the_thresholds, **RUN | {"baselines": True}
    ).report
    assert report.policies[-1].key == "thresholds"
    assert report.policies[0].name.endswith("as_the_thresholds")
    assert report.settings["policy"] == report.policies[0].name
    assert any("as_the_thresholds" in note for note in report.notes)


def test_a_policy_must_return_a_decision(small):
    with pytest.raises(InputError, match="returned 'yes'"):
        system(small, policy=lambda point: "yes")


def test_rows_that_leave_no_choice_are_named(small):
    rows = small.rows.copy()
    rows[7, :] = np.nan
    with pytest.raises(InputError, match="row 7"):
        simulate(small.bundle, rows, small.truth, policy=as_the_thresholds, **RUN)
