"""Tests of the comparison of live and virtual figures in the twin benchmark."""

import json
from dataclasses import fields

import numpy as np
import pytest

from benchmarks import bench_twin
from benchmarks.bench_twin import BENCHMARK, compare, figures
from benchmarks.data.fleet_bundles import FleetBundle
from gatewise_sim.fleet.results import REASON, Answers
from tests.support.digits_system import fit_digits_system

#: Classes of the four rows; the devices get the second one wrong.
TRUTH = np.array([0, 1, 0, 1])


def make_answers(offset_ms: float = 0.0, *, changed_index: int | None = None) -> Answers:
    """Make answers to 100 instances; every fourth one is offloaded.

    `changed_index` is the instance that gets another label, and `offset_ms` is added to latencies.
    """
    n_instances = 100
    row = np.arange(n_instances) % 4
    is_offloaded = row == 3
    label = is_offloaded.astype(int)
    if changed_index is not None:
        label[changed_index] += 1
    columns = {column.name: np.zeros(n_instances) for column in fields(Answers)}
    return Answers(
        **columns
        | {
            "time": np.arange(n_instances) / 10,
            "device": np.arange(n_instances) % 5,
            "row": row,
            "latency_ms": np.where(is_offloaded, 20.0 + np.arange(n_instances) / 10, 0.5)
            + offset_ms,
            "reason": np.where(is_offloaded, REASON["offloaded"], REASON["stopped"]),
            "bytes_up": np.where(is_offloaded, 120, 0),
            "bytes_down": np.where(is_offloaded, 80, 0),
            "radio_joules": np.where(is_offloaded, 4.0, 0.0),
            "label": label,
        }
    )


def list_held_by_key(rows: list[dict]) -> dict[str, bool]:
    """List by key whether each figure is within its tolerance."""
    return {row["key"]: row["held"] for row in rows}


@pytest.mark.parametrize(
    ("live", "virtual", "missed_keys"),
    [
        ({}, {}, set()),
        ({}, {"offset_ms": 2.9}, set()),
        ({}, {"offset_ms": 3.1}, {"p50_ms", "p95_ms", "offloaded_p50_ms", "offloaded_p95_ms"}),
        # the tolerance of latencies is 3 ms, or a tenth of long ones
        ({"offset_ms": 100.0}, {"offset_ms": 109.0}, set()),
        ({}, {"changed_index": 0}, {"accuracy"}),
    ],
)
def test_each_figure_has_its_own_tolerance(live, virtual, missed_keys):
    run_figures = figures(make_answers(), TRUTH)
    assert run_figures["p50_ms"] == 0.5
    # the median of 20.3, 20.7 ... 29.9
    assert run_figures["offloaded_p50_ms"] == pytest.approx(20.0 + 5.1)
    assert run_figures["offload_rate"] == 0.25
    assert run_figures["accuracy"] == 0.75
    assert run_figures["bytes"] == 50.0  # 120 + 80 for a quarter of the instances
    is_held = list_held_by_key(compare(make_answers(**live), make_answers(**virtual), TRUTH))
    assert {key for key, held in is_held.items() if not held} == missed_keys


def test_missing_figure_is_not_held():
    local_answers = make_answers()
    local_answers.reason[:] = REASON["stopped"]
    is_held = list_held_by_key(compare(local_answers, local_answers, TRUTH))
    assert not is_held["offloaded_p50_ms"]
    assert is_held["offload_rate"]


def test_unknown_cell_is_refused(tmp_path):
    assert BENCHMARK.main(["--only", "nothing", "--out", str(tmp_path)]) == 2


@pytest.mark.slow
def test_quick_run_has_the_decisions_of_the_live_run(tmp_path, monkeypatch, make_once):
    digits = make_once("digits-system", fit_digits_system)
    fleet_bundle = FleetBundle("digits", digits.bundle, digits.rows, digits.truth)
    monkeypatch.setattr(bench_twin, "fleet_bundle", lambda _name: fleet_bundle)
    # each device is a process, which starts twice
    monkeypatch.setattr(bench_twin, "CELLS", ["digits/2/wifi"])
    assert BENCHMARK.main(["--quick", "--seconds", "2", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "twin.json").read_text())
    (cell,) = document["cells"]
    assert set(cell["same_decisions"].values()) == {True}
    assert cell["lost"] == 0
    is_held = list_held_by_key(cell["rows"])
    assert is_held["offload_rate"]
    assert is_held["accuracy"]
    assert (tmp_path / "twin.md").read_text().startswith("# The twin")
