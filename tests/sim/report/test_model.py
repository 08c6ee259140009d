"""The typed report: what it derives, what it writes, and what it refuses to read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gatewise.errors import InputError
from gatewise_sim.report.model import SCHEMA_VERSION, Report
from gatewise_sim.report.policy_result import Measurement
from tests.sim.report.reports import live, made_up

HEADLINE = {
    "dataset", "method", "instances", "offload_rate", "accuracy", "feature_cost",
    "cost_reduction", "bytes", "latency_ms", "answers", "transport",
}  # fmt: skip


@pytest.fixture
def document() -> dict:
    return made_up(money=30.0).to_dict()


@pytest.mark.parametrize("report", [made_up(), made_up(accuracy=None, money=3.0), live()])
def test_what_is_written_is_read_as_it_was(report):
    assert Report.from_json(report.to_json()) == report


def test_the_headline_follows_from_the_policies(document):
    report = made_up(money=30.0)
    assert set(document) >= HEADLINE
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["instances"] == 1000
    assert document["accuracy"]["system"] == report.system.accuracy.value
    assert set(document["accuracy"]) == {"system", "edge_only", "cloud_only"}
    assert document["feature_cost"] == {"system": 10.0, "edge_only": 8.0, "cloud_only": 40.0}
    assert document["cost_reduction"] == pytest.approx(0.75)
    assert document["bytes"] == {"system": 150_000, "cloud_only": 750_000}
    assert set(document["latency_ms"]["cloud_only"]) == {"p50", "p95", "p99"}
    assert document["answers"]["fallback"] == 10
    assert document["money"]["total"] == 30.0
    assert [leg["key"] for leg in document["legs"]][:3] == ["system", "edge_only", "cloud_only"]


def test_without_a_cloud_there_is_nothing_to_save():
    report = made_up(keys=("system", "edge_only"))
    assert report.cost_reduction is None
    assert set(report.bytes) == {"system"}


def test_json_has_no_number_that_is_none():
    report = made_up(keys=("system",))
    unknown = replace(report.system, accuracy=Measurement(math.nan, math.nan, math.nan))
    text = replace(report, policies=(unknown,)).to_json()
    assert "NaN" not in text
    assert json.loads(text)["accuracy"]["system"] is None
    assert Report.from_json(text).system.accuracy is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("legs", 0, "accuracy", "value"), "x", "legs[0].accuracy.value"),
        (("legs", 0, "accuracy", "low"), 2.0, "legs[0].accuracy"),
        (("legs", 1, "answers", "edge"), 1.5, "legs[1].answers.edge"),
        (("legs", 0, "instances"), True, "legs[0].instances"),
        (("legs",), None, "legs"),
        (("legs",), [], "legs"),
        (("timeline", 3, "p50_ms"), "soon", "timeline[3].p50_ms"),
        (("money", "currency"), None, None),  # follows from the policies: not read
        (("legs", 0, "money", "currency"), 5, "legs[0].money.currency"),
        (("transport",), "mqtt", "transport"),
        (("settings",), [], "settings"),
        (("kind",), "junit", "kind"),
        (("schema_version",), 99, "schema_version"),
        (("frontier", "active", "cost"), 10**400, "frontier.active.cost"),
    ],
)
def test_a_wrong_field_is_named(document, path, value, named):
    *parents, last = path
    place = document
    for step in parents:
        place = place[step]
    place[last] = value
    if named is None:
        Report.from_dict(document)
        return
    with pytest.raises(InputError) as caught:
        Report.from_dict(document)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["dataset", "legs", "frontier", "settings", "confidence_level"])
def test_a_missing_field_is_named(document, key):
    del document[key]
    with pytest.raises(InputError, match=f"^{key}: is missing"):
        Report.from_dict(document)


def test_keys_of_later_reports_are_not_read(document):
    document["weather"] = "fine"
    document["legs"][0]["mood"] = 3
    assert Report.from_dict(document) == made_up(money=30.0)


def test_a_simulation_of_version_1_has_the_same_fields(document):
    del document["schema_version"]
    assert Report.from_dict(document) == made_up(money=30.0)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"kind": "gatewise-demo", '])
def test_what_is_no_report(text):
    with pytest.raises(InputError):
        Report.from_json(text)


def test_an_interval_holds_its_value():
    with pytest.raises(InputError, match="interval"):
        Measurement(2.0, 3.0, 4.0)
    assert Measurement(2.0).low is None


@pytest.fixture
def first_demo() -> dict:
    """The demo's report as it was in version 1."""
    three = ("system", "edge_only", "cloud_only")
    return {
        "kind": "gatewise-demo",
        "dataset": "digits",
        "method": "staged",
        "instances": 540,
        "accuracy": {"system": 0.9, "edge_only": 0.8, "cloud_only": 0.95},
        "feature_cost": {"system": 20.0, "edge_only": 18.0, "cloud_only": 64.0},
        "cost": {"full": {"system": 21.0, "edge_only": 18.0, "cloud_only": 66.0}},
        "traffic": {key: {"up": 5400, "down": 2700} for key in three},
        "latency_ms": {key: {"p50": 1.0, "p95": 50.0, "p99": 90.0} for key in three},
        "latency_histogram": {"edges_ms": [1.0, 10.0, 100.0], "counts": {"system": [500, 40]}},
        "answers": {"edge": 498, "cloud": 40, "fallback": 2, "late": 1, "lost": 0},
        "passes": {
            key: {"edge": 0, "cloud": 540, "fallback": 0, "late": 0, "lost": 0, "retries": 1}
            for key in three
        },
        "transport": {"kind": "mqtt", "broker": "embedded", "link": "wifi"},
        "expected": {"compared": 538, "differing": {"labels": 0}, "cost": 20.0},
        "frontier": made_up().to_dict()["frontier"],
        "settings": {"devices": 4, "workers": 1, "deadline_ms": 2000.0},
        "command": "gatewise demo",
        "versions": {"python": "3.11.7"},
        "troubles": [],
        "created": "2026-01-01T00:00:00Z",
    }


def test_a_demo_of_version_1(first_demo):
    report = Report.from_dict(first_demo)
    assert report.accuracy == first_demo["accuracy"]
    assert report.feature_cost == first_demo["feature_cost"]
    assert report.system.cost.value == 21.0
    assert report.bytes["system"] == 8100
    assert report.latency_ms["system"]["p99"] == 90.0
    assert report.answers.fallback == 2
    assert report.policy("cloud_only").answers.retries == 1
    assert report.expected.compared == 538
    assert report.run["created"] == "2026-01-01T00:00:00Z"
    assert Report.from_json(report.to_json()) == report


def test_shares_of_a_demo_of_version_1_get_wilsons_interval(first_demo):
    """As scipy gives it."""
    from scipy.stats import binomtest

    expected = binomtest(486, 540).proportion_ci(0.95, "wilson")
    accuracy = Report.from_dict(first_demo).system.accuracy
    assert (accuracy.low, accuracy.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("key", ["accuracy", "latency_ms", "answers", "traffic", "cost"])
def test_a_missing_field_of_version_1_is_named(first_demo, key):
    del first_demo[key]
    with pytest.raises(InputError, match=f"^{key}: is missing"):
        Report.from_dict(first_demo)
