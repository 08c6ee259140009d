"""Decode label messages in CBOR and JSON; without I/O.

docs/wire.md lists the fields. The sender is read from the topic, which the broker has checked.

>>> payload = b'{"id": "00112233445566778899aabbccddeeff", "dev": "pi-1", "l": "worn"}'
>>> decode_label("gw/v1/bench-1/labels/json", payload, now=5.0)  # doctest: +ELLIPSIS
MachineLabel(id='001...f-0', device='pi-1', label='worn', by='bench-1', at=5.0)
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gatewise.documents import unique_json
from gatewise.errors import InputError
from gatewise_edge.checks import check_device, check_int, check_size, check_text
from gatewise_edge.errors import WireError
from gatewise_edge.link.encoding import WIRE_VERSION, Entries, decode_entries
from gatewise_edge.link.messages import MAX_ROWS
from gatewise_edge.link.wire import device_of
from gatewise_export.archive.machine_labels import MachineLabel

#: Maximum number of bytes in the name of a class.
MAX_LABEL_BYTES: Final = 200
#: Largest time, in Unix seconds; a sender could give any integer.
MAX_TIME: Final = 1 << 40


class _JsonLabel(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a label message in JSON."""

    id: Annotated[str, Meta(min_length=32, max_length=32, pattern="^[0-9a-f]{32}$")]
    dev: str
    l: str  # noqa: E741
    v: int = WIRE_VERSION
    i: int = 0
    at: int | msgspec.UnsetType = msgspec.UNSET


_DECODER: Final = msgspec.json.Decoder(_JsonLabel)


def decode_label(topic: str, payload: bytes, now: float) -> MachineLabel:
    """Decode a label from an untrusted sender; `now` is the default for its time.

    Raises WireError if the message is not valid.
    """
    sender = device_of(topic)
    if topic.endswith("/json"):
        return _from_json(payload, sender, now)

    def build_label(message: Entries) -> MachineLabel:
        return _make_label(
            message.id,
            message.text("dev"),
            message.text("l", MAX_LABEL_BYTES),
            message.integer("i", 0, MAX_ROWS - 1) if message.has("i") else 0,
            sender,
            message.integer("at", 0, MAX_TIME) if message.has("at") else now,
        )

    return decode_entries(payload, build_label)


def _from_json(payload: bytes, sender: str, now: float) -> MachineLabel:
    check_size(payload)
    try:
        message = _DECODER.decode(payload)
        unique_json(payload)
    except msgspec.ValidationError as error:
        raise WireError("type", str(error)[:200]) from None
    except (msgspec.DecodeError, InputError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("json", f"not a message in JSON: {str(error)[:120]}") from None
    if message.v != WIRE_VERSION:
        raise WireError("version", f"a message of layout {message.v}, not {WIRE_VERSION}")
    at = now if message.at is msgspec.UNSET else float(check_int("at", message.at, 0, MAX_TIME))
    return _make_label(bytes.fromhex(message.id), message.dev, message.l, message.i, sender, at)


def _make_label(
    request_id: bytes, device: str, label: str, row: int, sender: str, at: float
) -> MachineLabel:
    check_int("i", row, 0, MAX_ROWS - 1)
    check_text("label", label, 1, MAX_LABEL_BYTES)
    return MachineLabel(
        id=f"{request_id.hex()}-{row}",
        device=check_device(device),
        label=label,
        by=sender,
        at=float(at),
    )
