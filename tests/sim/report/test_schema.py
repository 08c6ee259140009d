"""The JSON Schema of reports: as the code has it, and true of real reports."""

from __future__ import annotations

import json
from pathlib import Path

import fastjsonschema
import pytest

from gatewise_sim.report.schema import report_schema
from tests.sim.report.reports import live, made_up

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/report.schema.json").read_text())
check = fastjsonschema.compile(SCHEMA)


def test_the_file_is_the_codes():
    written = "python -m gatewise_sim.report.schema > docs/report.schema.json"
    assert report_schema() == SCHEMA, f"write it again: {written}"


@pytest.mark.parametrize("report", [made_up(), made_up(accuracy=None, money=3.0), live()])
def test_it_takes_reports_and_needs_their_keys(report):
    document = report.to_dict()
    check(document)
    for key in SCHEMA["required"]:
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check({k: v for k, v in document.items() if k != key})
    for key, wrong in (("instances", "1000"), ("legs", {}), ("kind", "gatewise-other")):
        with pytest.raises(fastjsonschema.JsonSchemaException, match=key):
            check(document | {key: wrong})
