"""Sockets that refuse an MQTT packet by the length in its header, before its body is read.

paho-mqtt reads a packet of any length, up to 256 MB, into memory. It creates its sockets with the
`wrap_socket` method of a TLS context, and this method can return other classes of sockets. For TLS,
:class:`TlsSocket` is the context's `sslsocket_class`. For TCP, :class:`PlainContext` does not
encrypt and returns a :class:`PlainSocket`.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from gatewise_edge.checks import MAX_PAYLOAD

#: Largest size of a packet in bytes. It is above :data:`MAX_PAYLOAD`, because a payload slightly
#: above that limit must get an error response and not end the connection.
MAX_PACKET_BYTES: Final = 2 * MAX_PAYLOAD


class OversizedPacketError(OSError):
    """A packet of more than :data:`MAX_PACKET_BYTES` bytes; paho then closes the connection."""


class PacketLimit:
    """A mixin for socket classes that parses the headers of received packets.

    The first byte of a packet is its type, and the next bytes are the length of the rest (MQTT
    3.1.1, section 2.2). `oversized` is the length of a refused packet, or 0.
    """

    oversized = 0
    # class attributes, because `ssl` creates sockets without calling the constructor
    _is_in_header = False
    _length = 0
    _length_shift = 0
    _n_body_bytes_left = 0

    def recv(self, n_bytes: int = 1024, flags: int = 0) -> bytes:
        """Receive up to `n_bytes`; OversizedPacketError at the header of a larger packet."""
        received_bytes: bytes = super().recv(n_bytes, flags)  # type: ignore[misc]
        self._parse_packets(received_bytes)
        return received_bytes

    def _parse_packets(self, received_bytes: bytes) -> None:
        """Skip the bodies of packets, and read the length in each header."""
        position = 0
        while position < len(received_bytes):
            if self._n_body_bytes_left:
                n_skipped_bytes = min(self._n_body_bytes_left, len(received_bytes) - position)
                self._n_body_bytes_left -= n_skipped_bytes
                position += n_skipped_bytes
                continue
            if self._is_in_header:
                self._read_length(received_bytes[position])
            else:
                self._is_in_header = True  # this byte is the type
                self._length = self._length_shift = 0
            position += 1

    def _read_length(self, byte: int) -> None:
        """Decode one byte of the remaining length (MQTT 3.1.1, section 2.2.3).

        Each byte holds seven bits, the lowest first. Its eighth bit says that another byte follows.
        """
        self._length |= (byte & 127) << self._length_shift
        self._length_shift += 7
        if self._length > MAX_PACKET_BYTES:
            self.oversized = self._length
            raise OversizedPacketError(f"a packet of at least {self._length} bytes")
        if byte < 128:
            self._is_in_header = False
            self._n_body_bytes_left = self._length


class PlainSocket(PacketLimit, socket.socket):
    """A connection over TCP."""

    def do_handshake(self) -> None:
        """Do nothing, because TCP has no handshake after connecting."""


class TlsSocket(PacketLimit, ssl.SSLSocket):
    """A connection over TLS."""


class PlainContext(ssl.SSLContext):
    """A context for unencrypted connections, with the interface that paho expects."""

    def wrap_socket(self, sock: socket.socket, **_: Any) -> PlainSocket:  # type: ignore[override]
        """Move a connected socket into a PlainSocket."""
        return PlainSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())


def limited_context(tls_context: ssl.SSLContext | None) -> ssl.SSLContext:
    """Make a context for sockets that refuse oversized packets; plain without `tls_context`."""
    if tls_context is None:
        return PlainContext(ssl.PROTOCOL_TLS_CLIENT)
    tls_context.sslsocket_class = TlsSocket
    return tls_context
