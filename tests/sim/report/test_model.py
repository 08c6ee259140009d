"""The typed report: what it derives, what it writes, and what it refuses to read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.model import DEMO_KIND, SCHEMA_VERSION, Report
from tests.sim.report.reports import live, made_up
from tests.support.refused import refused

HEADLINE = {
    "dataset", "method", "instances", "offload_rate", "accuracy", "feature_cost",
    "cost_reduction", "bytes", "latency_ms", "answers", "transport",
}  # fmt: skip


@pytest.fixture
def document() -> dict:
    return made_up(money=30.0).to_dict()


@pytest.mark.parametrize("report", [made_up(), made_up(accuracy=None, money=3.0), live()])
def test_what_is_written_is_read_as_it_was(report):
    assert Report.from_dict(json.loads(report.to_json())) == report


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


def test_json_has_no_number_that_is_none():
    report = made_up(keys=("system",))
    unknown = replace(report.system, accuracy=Measurement(math.nan, math.nan, math.nan))
    text = replace(report, policies=(unknown,)).to_json()
    assert "NaN" not in text
    assert json.loads(text)["accuracy"]["system"] is None
    assert Report.from_dict(json.loads(text)).system.accuracy is None


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
    refused(Report.from_dict, document, says=named)


@pytest.mark.parametrize("key", ["dataset", "legs", "settings"])
def test_a_missing_field_is_named(document, key):
    del document[key]
    with pytest.raises(InputError, match=f"^{key}: is missing"):
        Report.from_dict(document)


def test_keys_of_later_reports_are_not_read(document):
    document["weather"] = "fine"
    document["legs"][0]["mood"] = 3
    assert Report.from_dict(document) == made_up(money=30.0)


def test_a_simulation_of_version_1_has_the_same_fields_a_demo_has_not(document):
    del document["schema_version"]
    assert Report.from_dict(document) == made_up(money=30.0)
    with pytest.raises(InputError, match="schema version 1"):
        Report.from_dict(document | {"kind": DEMO_KIND})


def test_an_interval_holds_its_value():
    with pytest.raises(InputError, match="interval"):
        Measurement(2.0, 3.0, 4.0)
    assert Measurement(2.0).low is None
