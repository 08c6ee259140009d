import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.compare import FIGURES, Measured, Run, compare_runs, measured
from gatewise_sim.compare.difference import difference, differing_settings

simulation = runpy.run_path(str(Path(__file__).parent / "sweep_jobs.py"))["simulation"]
NUMBER = st.floats(-1e6, 1e6)
HALF = st.floats(0, 1e3)


def run(name: str, **how) -> Run:
    currency = how.pop("currency", None)
    report = simulation(**how)
    return Run(name, name, report["kind"], report, measured(report, name), currency)


@given(NUMBER, HALF, NUMBER, HALF)
def test_of_symmetric_intervals_the_halves_add_up_as_independent_errors_do(a, x, b, y):
    found = difference(Measured(a, a - x, a + x), Measured(b, b - y, b + y))
    slack = 1e-9 * (abs(a) + abs(b) + 1)
    assert found.value == pytest.approx(b - a, abs=slack)
    assert found.high - found.value == pytest.approx(math.hypot(x, y), abs=slack)
    assert found.value - found.low == pytest.approx(math.hypot(x, y), abs=slack)
    back = difference(Measured(b, b - y, b + y), Measured(a, a - x, a + x))
    assert back.beyond == found.beyond
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=slack)


def test_its_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    z, trials = 1.959963984540054, 4000
    covered = 0
    for a, b in rng.normal([1.0, 3.0], [0.5, 2.0], (trials, 2)).tolist():
        found = difference(
            Measured(a, a - z * 0.5, a + z * 0.5), Measured(b, b - z * 2.0, b + z * 2.0)
        )
        covered += found.low <= 2.0 <= found.high
    assert covered / trials == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / trials))


def test_a_skewed_interval_uses_the_side_that_faces_the_other():
    long_tail = Measured(10.0, 9.0, 20.0)
    assert difference(long_tail, Measured(15.0, 14.0, 16.0)).beyond is False
    assert difference(long_tail, Measured(5.0, 4.0, 6.0)).beyond is True


def test_without_an_interval_nothing_is_claimed():
    assert difference(Measured(1.0), Measured(5.0, 4.0, 6.0)) == (4.0, None, None, None)


def test_another_order_of_summation_is_no_difference():
    found = difference(Measured(0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2), Measured(0.3, 0.3, 0.3))
    assert found == (0.0, 0.0, 0.0, False)


def test_all_runs_are_held_against_the_first():
    runs = [run("a"), run("b", accuracy=0.95), run("c", p95=70.0)]
    found = compare_runs(runs)
    assert [r["name"] for r in found["runs"]] == ["a", "b", "c"]
    table = {(d["run"], d["figure"]): d for d in found["differences"]}
    assert len(table) == 2 * len(runs[0].figures)
    assert table["b", "accuracy"]["value"] == pytest.approx(0.05)
    assert table["b", "accuracy"]["beyond"] is True
    assert table["c", "accuracy"]["beyond"] is False
    assert table["c", "p95"]["value"] == pytest.approx(20.0)
    assert {d["figure"] for d in found["differences"]} <= {f.key for f in FIGURES}


def test_a_run_against_itself_differs_in_nothing():
    found = compare_runs([run("a", money=5.0, currency="EUR")] * 2)
    assert found["settings"] == []
    assert {d["value"] for d in found["differences"]} == {0.0}
    assert not any(d["beyond"] for d in found["differences"])


def test_money_of_two_currencies_has_no_difference():
    euro, dollar = run("a", money=5.0, currency="EUR"), run("b", money=6.0, currency="USD")
    keys = {d["figure"] for d in compare_runs([euro, dollar])["differences"]}
    assert "cost" in keys
    assert not {"money", "money_per_million"} & keys


def test_only_settings_that_differ_are_told():
    some = [run("a", devices=5, link="4g"), run("b", devices=5, link="wifi", pace="x")]
    some[1].report["transport"]["link"] = "wifi"
    some[1].report["versions"] = {"numpy": "2"}
    assert differing_settings(some) == {
        "transport.link": ["4g", "wifi"],
        "link": ["4g", "wifi"],
        "pace": [None, "x"],
        "versions.numpy": [None, "2"],
    }


def test_what_only_a_kind_of_run_has_is_marked():
    some = [run("a", devices=5, pace="x"), run("b", devices=6)]
    demo = Run("c", "c", "gatewise-demo", {"settings": {"devices": 7, "stage_kb": 32}}, {})
    common = {s["name"]: s["common"] for s in compare_runs([*some, demo])["settings"]}
    assert common["devices"] is True
    assert common["pace"] is common["stage_kb"] is False
    assert {s["name"]: s["common"] for s in compare_runs(some)["settings"]}["pace"] is True
