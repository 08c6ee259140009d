"""A broker that accepts every connection and subscription, and sends arbitrary bytes."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Self

# Packet types of MQTT 3.1.1, section 2.2.1
_CONNECT = 1
_PUBLISH = 3
_SUBSCRIBE = 8
#: Seconds to wait for a client, which may connect slowly on a busy machine.
TIMEOUT_S = 30.0


def publish_packet(topic: bytes, payload: bytes) -> bytes:
    """Make a PUBLISH packet at QoS 0."""
    return _make_packet(_PUBLISH << 4, len(topic).to_bytes(2, "big") + topic + payload)


def _make_packet(header: int, body: bytes) -> bytes:
    # MQTT 3.1.1, section 2.2.3: the remaining length in digits of base 128
    length = bytearray()
    remaining = len(body)
    while True:
        remaining, digit = divmod(remaining, 128)
        length.append(digit | (128 if remaining else 0))
        if not remaining:
            return bytes([header]) + bytes(length) + body


class RawBroker:
    """Broker for one client at a time, as a context manager.

    Attributes
    ----------
    url : str
        URL of the broker.
    n_connections : int
        Number of connections so far.
    published_messages : queue of (bytes, bytes)
        Topic and payload of each PUBLISH of the client.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.n_connections = 0
        self.published_messages: queue.Queue[tuple[bytes, bytes]] = queue.Queue()
        self._client: socket.socket | None = None
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, packet: bytes) -> None:
        """Send bytes to the client once it is connected and subscribed."""
        assert self._subscribed.wait(TIMEOUT_S)
        assert self._client is not None
        self._client.sendall(packet)

    def wait_for_connection(self, count: int) -> None:
        """Wait until the client has connected and subscribed `count` times."""
        while self.n_connections < count:
            self._subscribed.wait(0.01)
        assert self._subscribed.wait(TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                self._client, _ = self._listener.accept()
            except OSError:
                return
            with self._client, self._client.makefile("rb") as stream:
                try:
                    while self._answer_packet(stream.read(1), stream):
                        pass
                except OSError:
                    pass
                self._subscribed.clear()

    def _answer_packet(self, header: bytes, stream: object) -> bool:
        """Read and answer a packet after its first byte; return whether there was one."""
        if not header:
            return False
        # the remaining length, in digits of base 128 with the lowest first
        length = 0
        shift = 0
        while True:
            byte = stream.read(1)[0]  # type: ignore[attr-defined]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body: bytes = stream.read(length)  # type: ignore[attr-defined]
        assert self._client is not None
        packet_type = header[0] >> 4
        qos = header[0] >> 1 & 3
        if packet_type == _CONNECT:
            self.n_connections += 1
            self._client.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
        elif packet_type == _SUBSCRIBE:
            self._client.sendall(b"\x90\x03" + body[:2] + b"\x01")  # SUBACK: QoS 1 granted
            self._subscribed.set()
        elif packet_type == _PUBLISH:
            topic_end = 2 + int.from_bytes(body[:2], "big")
            topic = body[2:topic_end]
            payload = body[topic_end:]
            if qos:
                self._client.sendall(b"\x40\x02" + payload[:2])  # PUBACK
                payload = payload[2:]
            self.published_messages.put((topic, payload))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Wake accept(), which would block forever.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._client is not None:
            self._client.close()
        self._thread.join(10.0)
