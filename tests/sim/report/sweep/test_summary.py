import csv
import io
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.report.sweep.summary import PointResult, csv_text, sorted_points, summarise
from tests.sim.report.reports import simulation

OF = {"gatewise": "0", "job": {}, "files": {}}


def document(reports, name="workers", values=None):
    """The document of a sweep of one setting; a text in place of a report is an error."""
    values = tuple(range(1, len(reports) + 1)) if values is None else values
    points = [
        PointResult({name: v}, f"{i:032x}", None, r)
        if isinstance(r, str)
        else PointResult({name: v}, f"{i:032x}", r)
        for i, (v, r) in enumerate(zip(values, reports, strict=True))
    ]
    return summarise({name: values}, points, OF, "gatewise simulate")


def test_the_cheapest_within_half_a_point_of_the_best_is_named():
    found = document(
        [
            simulation(accuracy=0.990, half=0.001, cost=30.0, p95=20.0),
            simulation(accuracy=0.986, half=0.001, cost=12.0, p95=60.0),
            simulation(accuracy=0.970, half=0.001, cost=5.0, p95=10.0),
        ]
    )
    assert (found["cost"], found["cheapest"], found["fastest"]) == ("cost", 1, 2)
    assert found["answer"] == (
        "Cheapest within 0.5 points of the best accuracy (99.0 %): workers=2, 98.6 % accurate, "
        "cost per instance 12, 95 % answered within 60 ms. "
        "Fastest: workers=3, 97.0 % accurate, cost per instance 5, 95 % answered within 10 ms."
    )


def test_money_counts_where_there_is_any():
    some = [
        simulation(money=10.0, cost=1.0, seconds=60.0),
        simulation(money=5.0, cost=2.0, seconds=3600.0),
    ]
    found = document(some)
    assert (found["cost"], found["cheapest"], found["currency"]) == ("money", 1, "EUR")
    assert "5 EUR a month" in found["answer"]
    # More devices have more instances: a month's money would only say so.
    found = document(some, name="devices")
    assert found["cost"] == "money_per_million"
    month = 365.25 / 12 * 86_400
    million = found["points"][0]["figures"]["money_per_million"]["value"]
    assert million == pytest.approx(10.0 / (1000 * month / 60) * 1e6)
    # Where one has no money, none is compared by it.
    assert document([*some, simulation()])["cost"] == "cost"


def test_a_cheaper_point_that_chance_may_have_put_down_is_said():
    unsure = [
        simulation(accuracy=0.99, half=0.02, cost=9.0),
        simulation(accuracy=0.97, half=0.02, cost=3.0),
    ]
    assert "perhaps as accurate: workers=2" in document(unsure)["answer"]
    sure = [
        simulation(accuracy=0.99, half=0.002, cost=9.0),
        simulation(accuracy=0.97, half=0.002, cost=3.0),
    ]
    assert "perhaps" not in document(sure)["answer"]


def test_what_describes_the_fleet_is_not_chosen():
    some = [
        simulation(accuracy=0.857, half=0.03, cost=6.9, p95=8.0),
        simulation(accuracy=0.847, half=0.03, cost=6.9, p95=490.0),
        simulation(accuracy=0.861, half=0.03, cost=6.85, p95=8.0),
        simulation(accuracy=0.859, half=0.03, cost=6.9, p95=490.0),
    ]
    sweeps = {"devices": (50, 500), "link": ("wifi", "nb-iot")}
    points = [
        PointResult({"devices": devices, "link": link}, f"{i:032x}", some[i])
        for i, (devices, link) in enumerate(product(*sweeps.values()))
    ]
    found = summarise(sweeps, points, OF, "")
    assert (found["cheapest"], found["fastest"]) == (None, None)
    assert [(c["fleet"], c["cheapest"], c["ties"]) for c in found["choices"]] == [
        ({"devices": 50}, 0, []),
        ({"devices": 500}, 2, [3]),
    ]
    assert all(point["frontier"] for point in found["points"])
    assert found["answer"] == (
        "Cheapest within 0.5 points of the best accuracy, whatever the devices: link=wifi, 85.7 to "
        "86.1 % accurate, cost per instance 6.85 to 6.9, 95 % answered within 8 ms."
    )
    points[1] = replace(points[1], report=simulation(accuracy=0.857, cost=5.0, p95=490.0))
    found = summarise(sweeps, points, OF, "")
    assert ", by devices: devices=50: link=nb-iot, 85.7 % accurate" in found["answer"]
    assert "; devices=500: link=wifi, 86.1 % accurate" in found["answer"]
    alone = document([some[0], some[2]], name="devices", values=(50, 500))
    assert (alone["cheapest"], alone["choices"]) == (None, [])
    assert alone["answer"] == (
        "devices=50: 85.7 % accurate, cost per instance 6.9, 95 % answered within 8 ms; "
        "devices=500: 86.1 % accurate, cost per instance 6.85, 95 % answered within 8 ms. "
        "By the 95 % intervals there is no difference in accuracy and cost per instance."
    )


def test_ties_within_the_intervals_are_named():
    some = [simulation(cost=cost, accuracy=0.9) for cost in (10.1, 10.0, 12.0)]
    found = document(some)
    assert (found["cheapest"], found["choices"][0]["ties"]) == (1, [0])
    assert " As cheap, by the 95 % intervals: workers=1." in found["answer"]
    assert [point["frontier"] for point in found["points"]] == [True, True, False]


def test_failures_are_said_and_have_no_figures():
    found = document(["it broke", simulation()])
    assert (found["cheapest"], found["fastest"]) == (1, 1)
    assert found["answer"].endswith("1 of 2 settings failed.")
    assert (found["points"][0]["error"], found["points"][0]["figures"]) == ("it broke", {})
    assert [at for at, _ in sorted_points(found)] == [1, 0]
    empty = simulation()
    empty["legs"][0]["instances"] = 0
    failed = document([empty, simulation()])["points"][0]
    assert failed["error"] == "instances is 0; there is nothing to compare"
    none = document(["a", "b"])
    assert (none["cheapest"], none["cost"], none["dataset"]) == (None, "cost", None)
    assert none["answer"] == "None of 2 settings could be simulated."


def test_without_labels_cost_decides():
    some = [simulation(cost=9.0, accuracy=None), simulation(cost=3.0, accuracy=None)]
    found = document(some)
    assert found["cheapest"] == 1
    assert found["answer"].startswith("Cheapest: workers=2, cost per instance 3")
    assert not any(point["frontier"] for point in found["points"])


priced = cache(simulation)


@settings(deadline=None)  # reports are made up in full
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_frontier_is_what_no_other_beats(pairs):
    found = document([priced(cost=float(c), accuracy=0.5 + a / 20) for c, a in pairs])
    for point, (cost, right) in zip(found["points"], pairs, strict=True):
        beaten = any(c <= cost and a >= right and (c, a) != (cost, right) for c, a in pairs)
        assert point["frontier"] is not beaten
    cheapest = pairs[found["cheapest"]]
    assert cheapest[0] == min(c for c, a in pairs if a == max(a for _, a in pairs))


def test_the_table_has_a_line_a_point_and_the_numbers_of_the_document():
    found = document(['a, "b"\nc', simulation(accuracy=0.123456789)])
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [row["workers"] for row in rows] == ["1", "2"]
    assert rows[0]["error"] == 'a, "b"\nc'
    assert rows[0]["accuracy"] == ""
    figure = found["points"][1]["figures"]["accuracy"]
    assert [float(rows[1][k]) for k in ("accuracy", "accuracy_low", "accuracy_high")] == [
        figure["value"], figure["low"], figure["high"],
    ]  # fmt: skip
    assert "money" not in rows[1]
