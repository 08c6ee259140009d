"""Write ``<name>_wire.h`` and ``.c``, a C client that sends offloaded instances to the cloud.

The parts that are equal in every request are constants in flash. The C code joins them with the id,
the time to live and the values, in CBOR or in JSON.
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

#: Largest number of columns of a request that fits a microcontroller's memory.
MAX_COLUMNS = 4096
#: Sizes of fields in docs/wire.md: the id of a request, a CRC-32 and a float32.
ID_BYTES = 16
CRC_BYTES = 4
FLOAT_BYTES = 4
#: Size of the time to live: one byte for its type, then an unsigned number of 4 bytes.
CBOR_TTL_BYTES = 5
#: Text of the largest time to live, one day in ms.
LONGEST_JSON_TTL = "86400000"
#: Example of the longest text that the C code writes for a float32.
LONGEST_JSON_FLOAT = "-123456789e-38"
#: End of the list of values and of the request.
JSON_END = "]}"
#: Largest sizes in docs/wire.md of a response without its row, of the row without the classes, and
#: of each class.
RESPONSE_BYTES = 256
CBOR_ROW_BYTES = 4
JSON_ROW_BYTES = 16
JSON_CLASS_BYTES = 15
#: The longest error code, detail and pause of a refusal. JSON writes a quote as two characters.
LONGEST_REFUSAL = {"e": "e" * 32, "d": '"' * 200, "w": 86_400_000}


def no_client_reason(manifest: Manifest) -> str | None:
    """Reason why a bundle cannot have a C client; None if it can."""
    if manifest.cloud is None or manifest.last_exit < len(manifest.stages):
        return "the bundle offloads no instance at its operating point"
    if manifest.signal is not None or manifest.instance is not None:
        return "the client sends rows of columns, but the bundle reads windows or arrays"
    n_columns = len(manifest.cloud_inputs())
    if n_columns > MAX_COLUMNS:
        return f"the bundle's requests hold {n_columns} columns, more than {MAX_COLUMNS}"
    return None


def wire_files(bundle: Bundle, prefix: str) -> dict[str, str]:
    """Write the client's two files.

    Raises InputError if the bundle's name or version is not plain ASCII.
    """
    manifest = bundle.manifest
    for title_part in (manifest.name, manifest.version):
        has_escape = '"' in title_part or "\\" in title_part
        if not title_part.isascii() or not title_part.isprintable() or has_escape:
            raise InputError(
                f"{title_part!r} is not plain ASCII, which a C client needs for the bundle's name "
                "and version: pack again with --name and --bundle-version"
            )
    columns = manifest.cloud_inputs().astype(np.int64)
    column_type = c_text.unsigned_type(int(columns.max(initial=0)))
    constants = _request_constants(manifest, len(columns))
    tables = c_text.Tables()
    for name, constant in constants.items():
        tables.add(name, np.frombuffer(constant, np.uint8), "uint8_t")
    tables.add("request_columns", columns, column_type, "Features, in the order of a request.")
    takes_missing = manifest.missing.cloud == "allowed"
    n_classes = len(manifest.classes)
    constant_bytes = {
        form: sum(len(constant) for name, constant in constants.items() if name.startswith(form))
        for form in ("cbor", "json")
    }
    refusal = {"v": 1, "m": manifest.name, "mv": manifest.version} | LONGEST_REFUSAL
    placeholders: dict[str, Any] = {
        "title": c_text.safe_name(manifest.title),
        "model": c_text.c_string(manifest.name),
        "model_version": c_text.c_string(manifest.version),
        "n_columns": len(columns),
        "cbor_bytes": constant_bytes["cbor"]
        + ID_BYTES
        + CBOR_TTL_BYTES
        + FLOAT_BYTES * len(columns)
        + CRC_BYTES,
        "cbor_response_bytes": max(
            RESPONSE_BYTES + FLOAT_BYTES * n_classes + CBOR_ROW_BYTES,
            len(cbor2.dumps(refusal | {"id": bytes(ID_BYTES), "crc": bytes(CRC_BYTES)})),
        ),
        # an id in hexadecimal digits, and numbers with commas between them
        "json_bytes": constant_bytes["json"]
        - len(constants["json_null"])
        + 2 * ID_BYTES
        + len(LONGEST_JSON_TTL)
        + len(",".join([LONGEST_JSON_FLOAT] * len(columns)))
        + len(JSON_END),
        "json_response_bytes": max(
            RESPONSE_BYTES + JSON_CLASS_BYTES * n_classes + JSON_ROW_BYTES,
            len(json.dumps(refusal | {"id": bytes(ID_BYTES).hex()})),
        ),
        "tables": str(tables),
        "column_type": column_type,
        "refused": "isinf(row[i])" if takes_missing else "isinf(row[i]) || isnan(row[i])",
    }
    shared_placeholders = c_text.common_placeholders(prefix)
    return {
        f"{prefix}_wire.h": c_text.fill_template("wire.h", **placeholders, **shared_placeholders),
        f"{prefix}_wire.c": c_text.fill_template("wire.c", **placeholders, **shared_placeholders),
    }


def _request_constants(manifest: Manifest, n_columns: int) -> dict[str, bytes]:
    """Encode the parts that all requests share, in order, and the model's name and version."""
    encode = cbor2.dumps

    def encode_entries(**entries: object) -> bytes:
        return b"".join(encode(key) + encode(value) for key, value in entries.items())

    values_bytes = FLOAT_BYTES * n_columns
    # 0xa9 begins a map of 9 entries, and tag 85 an array of little-endian float32 (RFC 8746);
    # cutting the data off a value leaves its CBOR head
    values_head = encode(cbor2.CBORTag(85, bytes(values_bytes)))[:-values_bytes]
    json_name = json.dumps(manifest.name)
    json_version = json.dumps(manifest.version)
    return {
        "cbor_head": b"\xa9"
        + encode_entries(v=1)
        + encode("id")
        + encode(bytes(ID_BYTES))[:-ID_BYTES],
        "cbor_names": encode_entries(m=manifest.name, mv=manifest.version) + encode("ttl"),
        "cbor_shape": encode_entries(n=1, k=n_columns) + encode("x") + values_head,
        "cbor_tail": encode("crc") + encode(bytes(CRC_BYTES))[:-CRC_BYTES],
        "json_head": b'{"id":"',
        "json_names": f'","m":{json_name},"mv":{json_version},"ttl":'.encode(),
        "json_shape": b',"x":[',
        "json_null": b"null",
        "model": manifest.name.encode(),
        "model_version": manifest.version.encode(),
    }
