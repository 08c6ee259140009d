"""Tests of the report document: stable keys, JSON Schema, and errors for malformed documents."""

from __future__ import annotations

import json
from pathlib import Path

import fastjsonschema
import pytest

from gatewise.documents import DocumentError, decode_json, json_schema
from gatewise_sim.report.document import Report
from tests.sim.report.reports import make_live_report, make_report

SCHEMA_FILE = Path(__file__).parents[3] / "docs/report.schema.json"
#: Keys that later versions keep, with the type of the value or the keys inside it.
STABLE_KEYS = {
    "dataset": str,
    "method": str,
    "instances": int,
    "offload_rate": float,
    "accuracy": {"system", "edge_only", "cloud_only"},
    "feature_cost": {"system", "edge_only", "cloud_only"},
    "cost_reduction": float,
    "bytes": {"system", "cloud_only"},
    "latency_ms": {"system", "edge_only", "cloud_only"},
    "answers": {"edge", "cloud", "fallback", "late", "lost"},
    "transport": {"kind", "broker", "link"},
}


def make_document(report: Report) -> dict:
    """Make the JSON document of a report."""
    return json.loads(report.to_json())


def test_report_has_the_stable_keys():
    report = make_document(make_report())
    for key, keys_or_type in STABLE_KEYS.items():
        if isinstance(keys_or_type, set):
            assert set(report[key]) >= keys_or_type
        else:
            assert isinstance(report[key], keys_or_type)
    # `make_report` gives these costs and latencies to the system and to all cloud.
    assert report["cost_reduction"] == pytest.approx(1 - 10.0 / 40.0)
    assert report["latency_ms"]["system"] == {"p50": 25.0, "p95": 50.0, "p99": 75.0}


@pytest.mark.parametrize(
    "report", [make_report(money=3.0), make_report(accuracy=None), make_live_report()]
)
def test_report_survives_a_round_trip(report):
    assert decode_json(report.to_json().encode(), Report, "report.json") == report


@pytest.mark.parametrize(
    ("path", "bad_value", "message"),
    [
        (("kind",), "gatewise-sweep", "kind"),
        (("policies", 0, "instances"), "1000", r"policies\[0\]\.instances"),
        (("schema_version",), 2, "schema_version"),
        (("colour",), "red", "colour"),
    ],
)
def test_error_names_the_path_of_the_bad_value(path, bad_value, message):
    document = make_document(make_report())
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = bad_value
    with pytest.raises(DocumentError, match=message):
        decode_json(json.dumps(document).encode(), Report, "report.json")


def test_schema_in_the_docs_is_current_and_accepts_reports():
    schema = json_schema(Report, "report.json of Gatewise")
    assert SCHEMA_FILE.read_bytes() == schema, "write docs/report.schema.json again"
    validate = fastjsonschema.compile(json.loads(schema))
    validate(make_document(make_report(money=3.0)))
    validate(make_document(make_live_report()))
