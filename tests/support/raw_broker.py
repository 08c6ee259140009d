"""A broker of raw packets: grants every connection and subscription, and sends any bytes."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Self

_CONNECT, _PUBLISH, _SUBSCRIBE = 1, 3, 8


def publish_packet(topic: bytes, payload: bytes) -> bytes:
    """Make a PUBLISH packet at QoS 0."""
    return _packet(_PUBLISH << 4, len(topic).to_bytes(2, "big") + topic + payload)


def _packet(header: int, body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while True:
        left, low = divmod(left, 128)
        length.append(low | (128 if left else 0))
        if not left:
            return bytes([header]) + bytes(length) + body


class RawBroker:
    """Serves one client at a time; a context manager.

    Attributes
    ----------
    url : str
    connections : int
        So far.
    published : queue of (bytes, bytes)
        Topic and payload of each PUBLISH of the client.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.published: queue.Queue[tuple[bytes, bytes]] = queue.Queue()
        self._client: socket.socket | None = None
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, packet: bytes) -> None:
        """Send bytes to the client that is connected and subscribed."""
        assert self._subscribed.wait(30.0)
        assert self._client is not None
        self._client.sendall(packet)

    def wait_for_connection(self, count: int) -> None:
        """Wait until the client has connected and subscribed so many times."""
        while self.connections < count:
            self._subscribed.wait(0.01)
        assert self._subscribed.wait(30.0)

    def _serve(self) -> None:
        while True:
            try:
                self._client, _ = self._listener.accept()
            except OSError:
                return
            with self._client, self._client.makefile("rb") as stream:
                try:
                    while self._handle(stream.read(1), stream):
                        pass
                except OSError:
                    pass
                self._subscribed.clear()

    def _handle(self, header: bytes, stream: object) -> bool:
        if not header:
            return False
        length, shift = 0, 0
        while True:
            byte = stream.read(1)[0]  # type: ignore[attr-defined]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body: bytes = stream.read(length)  # type: ignore[attr-defined]
        assert self._client is not None
        kind, qos = header[0] >> 4, header[0] >> 1 & 3
        if kind == _CONNECT:
            self.connections += 1
            self._client.sendall(b"\x20\x02\x00\x00")
        elif kind == _SUBSCRIBE:
            self._client.sendall(b"\x90\x03" + body[:2] + b"\x01")
            self._subscribed.set()
        elif kind == _PUBLISH:
            end = 2 + int.from_bytes(body[:2], "big")
            topic, rest = body[2:end], body[end:]
            if qos:
                self._client.sendall(b"\x40\x02" + rest[:2])
                rest = rest[2:]
            self.published.put((topic, rest))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Otherwise accept() goes on waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._client is not None:
            self._client.close()
        self._thread.join(10.0)
