"""A policy of one's own: what it gains, what the report says of it, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge import Device
from gatewise_sim import Scenario, simulate
from tests.support.processes import run_here

EXAMPLE = Path(__file__).parents[3] / "examples" / "link_aware.py"
RUN = {
    "devices": 20, "seconds": 1200.0, "link": "nb-iot", "deadline_ms": 1000.0,
    "workload": "poisson:6/min", "baselines": False, "jobs": 1,
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the example, as its user has it."""
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leg(run):
    return run.report.policies[0]


@pytest.mark.usefixtures("here")
def test_the_example_gains_what_it_says(small):
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    system = leg(simulate(small.bundle, small.rows, small.truth, **RUN))
    own = leg(simulate(small.bundle, small.rows, small.truth, policy="link_aware:decide", **RUN))
    assert own.name == "link_aware:decide"
    assert abs(own.accuracy.value - system.accuracy.value) < 0.005
    assert own.bytes.up.value + own.bytes.down.value < 10
    assert system.bytes.up.value + system.bytes.down.value > 60
    assert own.joules_per_device_day < 0.1 * system.joules_per_device_day
    assert own.latency_ms["p95"].value < 1 < 990 < system.latency_ms["p95"].value


def test_the_command_compares_it_with_the_operating_point(small, here):
    np.savez(here / "rows.npz", X=small.rows[:120], y=small.truth[:120])
    done = run_here(
        "simulate", str(small.bundle.path), "--data", "rows.npz", "--devices", "5",
        "--time", "3min", "--policy", "link_aware:decide", "--jobs", "1", "--json",
        folder=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    names = [each["name"] for each in report["legs"]]
    assert (names[0], names[-1]) == ("link_aware:decide", "Thresholds")
    assert "--policy link_aware:decide" in report["command"]
    assert report["settings"]["policy"] == "link_aware:decide"
    assert any("link_aware:decide" in note for note in report["notes"])


def as_the_thresholds(point):
    return "stop" if point.stops else "continue"


def test_one_that_decides_as_the_thresholds_changes_no_figure(small):
    how = RUN | {"link": "4g", "deadline_ms": 500.0}
    system = leg(simulate(small.bundle, small.rows, small.truth, **how))
    own = leg(simulate(small.bundle, small.rows, small.truth, policy=as_the_thresholds, **how))
    assert own.answers == system.answers
    assert own.bytes == system.bytes
    assert own.latency_ms == system.latency_ms
    assert own.cost.value == pytest.approx(system.cost.value, rel=1e-12)
    assert own.accuracy == system.accuracy
    assert system.offload_rate.value == own.offload_rate.value > 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "nowhere_at_all:decide"}, "no module 'nowhere_at_all'"),
        ({"policy": "math:pi"}, "no function"),
        ({"policy": "sometimes"}, "policy 'sometimes'; choose one of system"),
        ({"policy": as_the_thresholds, "audit": 0.1}, "another policy"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Scenario(**changes)


def test_a_policy_must_return_a_decision_on_both_engines(small):
    def says_yes(point):
        return "yes"

    with pytest.raises(InputError, match="returned 'yes'"):
        simulate(small.bundle, small.rows, small.truth, policy=says_yes, **RUN)
    with (
        Device(small.bundle, policy=says_yes, check=False) as device,
        pytest.raises(InputError, match="returned 'yes'"),
    ):
        device.answer(small.rows[0])
    with pytest.raises(InputError, match="an audit needs"):
        Device(small.bundle, policy=says_yes, audit=0.1)


def test_rows_that_leave_no_choice_are_named(small):
    rows = small.rows.copy()
    rows[7, :] = np.nan
    with pytest.raises(InputError, match="row 7"):
        simulate(small.bundle, rows, small.truth, policy=as_the_thresholds, **RUN)
