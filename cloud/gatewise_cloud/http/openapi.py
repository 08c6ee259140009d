"""OpenAPI document of ``gatewise serve``, and an HTML page that shows it."""

from __future__ import annotations

import html
import json
from typing import Any

from gatewise import __version__
from gatewise_cloud.http.protocol import model_metadata
from gatewise_export.bundle.manifest import Manifest

_OBJECT_SCHEMA = {"type": "object"}


def openapi_document(manifest: Manifest) -> dict[str, Any]:
    """Describe the service for one bundle, with an example of each request."""
    metadata = model_metadata(manifest)
    model_path = f"/v2/models/{manifest.name}"
    column_names = list(manifest.column_names)
    has_raw_columns = manifest.encoder is not None
    instance: Any = (
        dict.fromkeys(column_names, "...") if has_raw_columns else [0.0] * len(column_names)
    )
    inputs = [
        tensor
        | {"shape": [1, *tensor["shape"][1:]], "data": ["..."] if has_raw_columns else instance}
        for tensor in metadata["inputs"]
    ]
    operations_by_path = {
        "/v2": _describe_operation("get", "Name and version of the server."),
        "/v2/health/live": _describe_operation("get", "Whether the server is alive."),
        "/v2/health/ready": _describe_operation("get", "Whether the server can answer."),
        model_path: _describe_operation("get", "Inputs and outputs of the model."),
        f"{model_path}/ready": _describe_operation("get", "Whether the model can answer."),
        f"{model_path}/infer": _describe_operation(
            "post", "Answer rows in the Open Inference Protocol.", {"inputs": inputs}
        ),
        "/predict": _describe_operation(
            "post", "Answer rows in plain JSON.", {"instances": [instance]}
        ),
        "/healthz": _describe_operation("get", "Health of the service, for supervisors."),
        "/metrics": _describe_operation("get", "Metrics for Prometheus.", media_type="text/plain"),
    }
    title = f"{manifest.name} {manifest.version}"
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": operations_by_path,
    }


def _describe_operation(
    method: str, summary: str, example: Any = None, media_type: str = "application/json"
) -> dict[str, Any]:
    schema = {"type": "string"} if media_type == "text/plain" else _OBJECT_SCHEMA
    response = {"description": "The answer.", "content": {media_type: {"schema": schema}}}
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": response}}
    if example is not None:
        content = {"application/json": {"schema": _OBJECT_SCHEMA, "example": example}}
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"]["400"] = {
            "description": "The request is not valid; `error` states the reason."
        }
    return {method: operation}


def openapi_page(document: dict[str, Any]) -> str:
    """Write the document as an HTML page without external resources."""
    sections = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            request_content = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            )
            example = json.dumps(request_content["example"], indent=1) if request_content else ""
            sections.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation['summary'])}</p>"
                + (f"<pre>{html.escape(example)}</pre>" if example else "")
            )
    title = html.escape(document["info"]["title"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>"
        f"<p><a href=openapi.json>openapi.json</a></p>{''.join(sections)}"
    )
