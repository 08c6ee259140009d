"""JSON Schema of ``report.json``, from the dataclasses that write and read it.

python -m gatewise_sim.report.schema > docs/report.schema.json
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from gatewise_sim.report.json_fields import json_name
from gatewise_sim.report.model import HEADLINE, KINDS, SCHEMA_VERSION, Report

_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def report_schema() -> dict[str, Any]:
    """Describe a report as :meth:`.Report.to_json` writes it, as JSON Schema (draft 7)."""
    definitions: dict[str, Any] = {}
    _schema(Report, definitions)
    report = definitions.pop("Report")
    hints = {name: get_type_hints(getattr(Report, name).fget)["return"] for name in HEADLINE}
    headline = {name: _schema(kind, definitions) for name, kind in hints.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"report.json of Gatewise, schema version {SCHEMA_VERSION}",
        "type": "object",
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            **headline,
            **report["properties"],
            "kind": {"enum": list(KINDS)},
        },
        "required": ["schema_version", *headline, *report["required"]],
        "definitions": dict(sorted(definitions.items())),
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Describe a type; what classes hold is entered into the definitions."""
    origin = get_origin(kind)
    if kind is Any:
        return {}
    if origin in (Union, types.UnionType):
        parts = [arg for arg in get_args(kind) if arg is not types.NoneType]
        return {"anyOf": [*(_schema(part, definitions) for part in parts), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(get_args(kind)[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1], definitions)}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # a class may hold itself
        hints = get_type_hints(kind)
        fields = {json_name(field): field for field in dataclasses.fields(kind)}
        definitions[kind.__name__] = {
            "description": (kind.__doc__ or "").partition("\n")[0],
            "type": "object",
            "properties": {k: _schema(hints[f.name], definitions) for k, f in fields.items()},
            "required": [k for k, field in fields.items() if field.default is not None],
        }
    return {"$ref": f"#/definitions/{kind.__name__}"}


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=1))
