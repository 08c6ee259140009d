"""A broker that accepts every connection and subscription, and sends arbitrary bytes.

The tests of security use it where no real broker would send what a client must withstand.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import BinaryIO, Self

#: Packet types of MQTT 3.1.1, section 2.2.1. The broker ignores all others, such as PINGREQ.
_CONNECT = 1
_PUBLISH = 3
_SUBSCRIBE = 8
_UNSUBSCRIBE = 10
#: Seconds to wait for a client, which may connect slowly on a busy machine.
TIMEOUT_S = 30.0


def publish_packet(topic: bytes, payload: bytes) -> bytes:
    """Make a PUBLISH packet at QoS 0."""
    return _make_packet(_PUBLISH << 4, len(topic).to_bytes(2, "big") + topic + payload)


def _make_packet(first_byte: int, body: bytes) -> bytes:
    """Write the first byte, the length of the body, and the body.

    MQTT 3.1.1, section 2.2.3: the length is in digits of base 128, the lowest first, with the high
    bit set in all but the last.
    """
    length_digits = bytearray()
    higher_digits = len(body)
    while True:
        higher_digits, digit = divmod(higher_digits, 128)
        length_digits.append(digit | (128 if higher_digits else 0))
        if not higher_digits:
            return bytes([first_byte]) + bytes(length_digits) + body


def _read_packet(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Read the first byte and the body of a packet; None if the client disconnects before its end.

    The length is written as in :func:`_make_packet`.
    """
    first_byte = stream.read(1)
    length = 0
    shift = 0
    while length_digit := stream.read(1):
        length |= (length_digit[0] & 127) << shift
        shift += 7
        if length_digit[0] < 128:
            body = stream.read(length)
            return (first_byte[0], body) if len(body) == length else None
    return None


class RawBroker:
    """Broker for one client at a time, as a context manager.

    A thread serves the client. It sets `_client` and the flag of the subscription before a test,
    which waits for the flag, uses the client.

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
        self._is_subscribed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, packet: bytes) -> None:
        """Send bytes to the client once it is connected and subscribed."""
        assert self._is_subscribed.wait(TIMEOUT_S)
        assert self._client is not None
        self._client.sendall(packet)

    def wait_for_connection(self, n_connections: int) -> None:
        """Wait until the client has connected `n_connections` times, and is subscribed."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.n_connections < n_connections:
            assert time.monotonic() < deadline, f"{self.n_connections} connections"
            time.sleep(0.01)
        assert self._is_subscribed.wait(TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                self._client, _ = self._listener.accept()
            except OSError:  # the listener was closed
                return
            with self._client, self._client.makefile("rb") as stream:
                with suppress(OSError):  # the client broke the connection
                    while packet := _read_packet(stream):
                        self._answer_packet(self._client, *packet)
                # before the next client is accepted, so that no test sends to the old one
                self._is_subscribed.clear()

    def _answer_packet(self, client: socket.socket, first_byte: int, body: bytes) -> None:
        """Answer a packet with the given first byte, which holds its type and its QoS."""
        packet_type = first_byte >> 4
        qos = first_byte >> 1 & 3
        if packet_type == _CONNECT:
            self.n_connections += 1
            client.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
        elif packet_type == _SUBSCRIBE:
            # SUBACK: the packet's identifier, and QoS 1 granted to its only topic
            client.sendall(b"\x90\x03" + body[:2] + b"\x01")
            self._is_subscribed.set()
        elif packet_type == _UNSUBSCRIBE:
            client.sendall(b"\xb0\x02" + body[:2])  # UNSUBACK
        elif packet_type == _PUBLISH:
            topic_end = 2 + int.from_bytes(body[:2], "big")
            topic = body[2:topic_end]
            payload = body[topic_end:]
            if qos:  # the identifier of the packet stands between its topic and payload
                client.sendall(b"\x40\x02" + payload[:2])  # PUBACK
                payload = payload[2:]
            self.published_messages.put((topic, payload))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Wake accept() and the read of a client that is still connected, which would block forever.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._client is not None:
            with suppress(OSError):  # the client has disconnected
                self._client.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
