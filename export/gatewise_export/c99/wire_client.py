"""Write ``<name>_wire.h`` and ``.c``, a C client that sends offloaded instances to the cloud.

The parts that are the same in every request are constants in flash. The C code joins them with the
id, the time to live and the values, in CBOR or in JSON.
"""

from __future__ import annotations

import json
from typing import Any

import cbor2
import numpy as np

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.c99 import c_text

MAX_COLUMNS = 4096
"""Largest number of columns of a request that fits a microcontroller's memory."""
ID_BYTES = 16
CRC_BYTES = 4
LONGEST_TTL = "86400000"
"""Text of the largest time to live in ms, which is one day."""
LONGEST_NUMBER = "-123456789e-38"
"""Example of the longest text that the C code writes for a float32."""


def no_client_reason(manifest: Manifest) -> str | None:
    """Get the reason why a bundle cannot have a C client; None if it can."""
    if manifest.cloud is None or manifest.last_exit < len(manifest.stages):
        return "the bundle offloads no instance at its operating point"
    if manifest.signal is not None or manifest.instance is not None:
        return "the bundle's requests hold windows or arrays instead of columns"
    n_columns = len(manifest.cloud_inputs())
    if n_columns > MAX_COLUMNS:
        return f"the bundle's requests hold {n_columns} columns, more than {MAX_COLUMNS}"
    return None


def wire_files(bundle: Bundle, prefix: str) -> dict[str, str]:
    """Write the client's two files.

    Raises InputError if the bundle's name or version is not plain ASCII.
    """
    manifest = bundle.manifest
    for text in (manifest.name, manifest.version):
        if not text.isascii() or not text.isprintable() or '"' in text or "\\" in text:
            raise InputError(
                f"{text!r} is not plain ASCII, which a C client needs for the bundle's name and "
                "version: pack again with --name and --bundle-version"
            )
    columns = manifest.cloud_inputs().astype(np.int64)
    column_type = c_text.unsigned(int(columns.max(initial=0)))
    pieces = _pieces(manifest, len(columns))
    tables = c_text.Tables()
    for name, piece in pieces.items():
        tables.add(name, np.frombuffer(piece, np.uint8), "uint8_t")
    tables.add("request_columns", columns, column_type, "Features, in the order of a request.")
    takes_missing = manifest.missing.cloud == "allowed"
    n_classes = len(manifest.classes)
    sizes = {
        kind: sum(len(piece) for name, piece in pieces.items() if name.startswith(kind))
        for kind in ("cbor", "json")
    }
    values: dict[str, Any] = {
        "title": c_text.safe(manifest.title),
        "model": c_text.quoted(manifest.name),
        "model_version": c_text.quoted(manifest.version),
        "n_columns": len(columns),
        "cbor_bytes": sizes["cbor"] + ID_BYTES + 5 + 4 * len(columns) + CRC_BYTES,
        # docs/wire.md: 256 bytes, 4 per row and 4 per class; in JSON 16 per row and 15 per class
        "cbor_response_bytes": 256 + 4 * n_classes + 4,
        "json_bytes": sizes["json"]
        - len(pieces["json_null"])
        + 2 * ID_BYTES
        + len(LONGEST_TTL)
        + (len(LONGEST_NUMBER) + 1) * len(columns)
        + 1,
        "json_response_bytes": 256 + 15 * n_classes + 16,
        "tables": str(tables),
        "column_type": column_type,
        "refused": "isinf(row[i])" if takes_missing else "isinf(row[i]) || isnan(row[i])",
    }
    names = c_text.template_names(prefix)
    return {
        f"{prefix}_wire.h": c_text.filled("wire.h", **values, **names),
        f"{prefix}_wire.c": c_text.filled("wire.c", **values, **names),
    }


def _pieces(manifest: Manifest, n_columns: int) -> dict[str, bytes]:
    """Encode the parts that all requests share, in order, and the model's name and version."""
    encode = cbor2.dumps

    def entries(**values: object) -> bytes:
        return b"".join(encode(key) + encode(value) for key, value in values.items())

    n_bytes = 4 * n_columns
    # 0xa9 begins a map of 9 entries; cutting the data off a value leaves its CBOR head
    values_head = encode(cbor2.CBORTag(85, bytes(n_bytes)))[:-n_bytes]
    quoted = {"m": json.dumps(manifest.name), "mv": json.dumps(manifest.version)}
    return {
        "cbor_head": b"\xa9" + entries(v=1) + encode("id") + encode(bytes(ID_BYTES))[:-ID_BYTES],
        "cbor_names": entries(m=manifest.name, mv=manifest.version) + encode("ttl"),
        "cbor_shape": entries(n=1, k=n_columns) + encode("x") + values_head,
        "cbor_tail": encode("crc") + encode(bytes(CRC_BYTES))[:-CRC_BYTES],
        "json_head": b'{"id":"',
        "json_names": f'","m":{quoted["m"]},"mv":{quoted["mv"]},"ttl":'.encode(),
        "json_shape": b',"x":[',
        "json_null": b"null",
        "model": manifest.name.encode(),
        "model_version": manifest.version.encode(),
    }
