"""Client of the small bundle in C, loaded from a library."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.c99.compiled import compiler_command
from gatewise_edge.link.wire import Response, decode_request
from gatewise_export import Bundle
from gatewise_export.c99.board_libraries import write_library

#: Flags with which the client compiles without a warning.
STRICT_FLAGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
#: The id that the C client of these tests gives to an encoded request.
ID = bytes(range(16))
#: Time to live of an encoded request.
TTL_MS = 500
#: States in the order of the C enumeration.
IDLE, WAITING, ANSWERED, REFUSED, TIMEOUT, UNSENT = range(6)
# Types of the C client's callbacks: publish a message, and draw random bytes.
PublishCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
RandomCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class CResponse(ctypes.Structure):
    """The struct `m_wire_response` of the small bundle."""

    _fields_ = (
        ("label", ctypes.c_int32),
        ("worker_us", ctypes.c_uint32),
        ("wait_ms", ctypes.c_uint32),
        ("error", ctypes.c_char * 33),
        ("probability", ctypes.c_float * 2),
    )


class Client:
    """C client of the small bundle, loaded from a library; it records the sent messages."""

    def __init__(
        self, library_path: Path, n_bytes: int, response_offset: int, *, is_json: bool
    ) -> None:
        self.library = ctypes.CDLL(str(library_path))
        for name in ("encode_cbor", "encode_json"):
            getattr(self.library, f"m_wire_{name}").restype = ctypes.c_size_t
        self.state_buffer = ctypes.create_string_buffer(n_bytes)
        self._response_offset = response_offset
        self.sent_messages: list[bytes] = []
        self.is_connected = True
        # C keeps pointers to the callbacks, so they must not be freed.
        self._callbacks = PublishCallback(self._publish), RandomCallback(self._draw_bytes)
        begin = getattr(self.library, "m_wire_begin_json" if is_json else "m_wire_begin")
        begin(self.state_buffer, *self._callbacks, None)

    def _publish(self, message: int, size: int, _: Any) -> int:
        if self.is_connected:
            self.sent_messages.append(ctypes.string_at(message, size))
        return int(self.is_connected)

    def _draw_bytes(self, address: int, size: int, _: Any) -> None:
        ctypes.memmove(address, os.urandom(size), size)

    def encode(self, form: str, row: Any, *, capacity: int = 1000) -> bytes:
        """Encode a request of three columns; empty if it needs more than `capacity` bytes."""
        message = ctypes.create_string_buffer(capacity)
        c_row = (ctypes.c_float * 3)(*row)
        encode = getattr(self.library, f"m_wire_encode_{form}")
        size = encode(message, capacity, ID, TTL_MS, c_row)
        return message.raw[:size]

    def decode(self, form: str, message: bytes) -> CResponse | None:
        """Decode a response; return None if it is invalid or belongs to another request."""
        response = CResponse()
        decode = getattr(self.library, f"m_wire_decode_{form}")
        is_valid = decode(message, len(message), ID, ctypes.byref(response))
        return response if is_valid else None

    def offload(self, row: Any, now: int, ttl_ms: int) -> int:
        """Begin a request; return the state. Times are in milliseconds."""
        c_row = (ctypes.c_float * 3)(*row)
        return int(self.library.m_wire_offload(self.state_buffer, c_row, now, ttl_ms))

    def receive(self, message: bytes, now: int) -> int:
        return int(self.library.m_wire_receive(self.state_buffer, message, len(message), now))

    def poll(self, now: int) -> int:
        return int(self.library.m_wire_poll(self.state_buffer, now))

    @property
    def response(self) -> CResponse:
        return CResponse.from_buffer(self.state_buffer, self._response_offset)


def make_client(folder: Path, *, json: bool = False) -> Client:
    path = folder / f"client{int(json)}.so"
    sizes = ctypes.CDLL(str(path))
    return Client(path, sizes.m_size(), sizes.m_response_at(), is_json=json)


def compile_client(bundle: Bundle, folder: Path) -> Path:
    """Write and compile the client of a bundle, for CBOR and for JSON; return its folder."""
    write_library(bundle, folder, "cmake", name="m")
    (folder / "sizes.c").write_text(
        '#include "m_wire.h"\n'
        "int m_size(void) { return (int)sizeof(m_wire); }\n"
        "int m_response_at(void) { return (int)offsetof(m_wire, response); }\n"
    )
    for has_json in (0, 1):
        sources = [*sorted((folder / "src").glob("*.c")), folder / "sizes.c"]
        flags = ("-std=c99", "-O1", "-shared", "-fPIC", f"-DM_WIRE_JSON={has_json}", *STRICT_FLAGS)
        command = [*(compiler_command() or ()), *flags, "-I", folder / "include", *sources, "-lm"]
        subprocess.run([*command, "-o", folder / f"client{has_json}.so"], check=True)
    return folder


def make_answer(message: bytes) -> Response:
    """Make the answer of a worker to a request."""
    return Response(
        id=decode_request(message).id, model="small", version="7", labels=[1],
        probabilities=[[0.25, 0.75]], worker_us=40,
    )  # fmt: skip


def make_refusal(message: bytes, error: str, *, wait_ms: int = 0) -> Response:
    """Make the response with which a worker refuses a request."""
    request_id = decode_request(message).id
    return Response(id=request_id, model="small", version="7", error=error, wait_ms=wait_ms)
