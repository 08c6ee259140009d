import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.figures import (
    FIGURES,
    ComparedRun,
    compare_runs,
    difference,
    differing_settings,
    figures_of_report,
)
from tests.sim.report.reports import made_up

NUMBER = st.floats(-1e6, 1e6)
HALF = st.floats(0, 1e3)


def run(name: str, *, link: str = "4g", currency: str = "EUR", **how) -> ComparedRun:
    report = made_up(**how)
    report = replace(report, transport=replace(report.transport, link=link))
    if report.money is not None:
        money = replace(report.money, currency=currency)
        policies = (replace(report.system, money=money), *report.policies[1:])
        report = replace(report, policies=policies)
    return ComparedRun(name, name, report, figures_of_report(report))


@given(NUMBER, HALF, NUMBER, HALF)
def test_of_symmetric_intervals_the_halves_add_up_as_independent_errors_do(a, x, b, y):
    found = difference(Measurement(a, a - x, a + x), Measurement(b, b - y, b + y))
    slack = 1e-9 * (abs(a) + abs(b) + 1)
    assert found.value == pytest.approx(b - a, abs=slack)
    assert found.high - found.value == pytest.approx(math.hypot(x, y), abs=slack)
    assert found.value - found.low == pytest.approx(math.hypot(x, y), abs=slack)
    back = difference(Measurement(b, b - y, b + y), Measurement(a, a - x, a + x))
    assert back.beyond == found.beyond
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=slack)


def test_a_skewed_interval_uses_the_side_that_faces_the_other():
    long_tail = Measurement(10.0, 9.0, 20.0)
    assert difference(long_tail, Measurement(15.0, 14.0, 16.0)).beyond is False
    assert difference(long_tail, Measurement(5.0, 4.0, 6.0)).beyond is True


def test_without_an_interval_nothing_is_claimed():
    assert difference(Measurement(1.0), Measurement(5.0, 4.0, 6.0)) == (4.0, None, None, None)


def test_another_order_of_summation_is_no_difference():
    found = difference(Measurement(0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2), Measurement(0.3, 0.3, 0.3))
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


def test_money_of_two_currencies_has_no_difference():
    euro, dollar = run("a", money=5.0, currency="EUR"), run("b", money=6.0, currency="USD")
    keys = {d["figure"] for d in compare_runs([euro, dollar])["differences"]}
    assert "cost" in keys
    assert not {"money", "money_per_million"} & keys


def test_only_settings_that_differ_are_listed():
    some = [
        run("a", settings={"devices": 5}),
        run("b", settings={"devices": 5, "link": "wifi", "pace": "x"}, link="wifi",
            versions={"python": "3.11.7", "gatewise": "0.1.0", "numpy": "2"}),
    ]  # fmt: skip
    assert differing_settings(some) == {
        "transport.link": ["4g", "wifi"],
        "link": ["4g", "wifi"],
        "pace": [None, "x"],
        "versions.numpy": [None, "2"],
    }
