"""A broker's address, and a client tuned for it.

What paho-mqtt does by default and neither device nor worker must have: Nagle's delay (44 ms a
request instead of 1), a dead peer noticed only by the keepalive, a reconnect without jitter (a
fleet that comes back in step).
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from gatewise.errors import InputError

_LOG = logging.getLogger(__name__)

_FORM: Final = "mqtt://[user:password@]host[:port]"
_USER_TIMEOUT_MS: Final = 3000
_LONGEST_BACKOFF: Final = 60
_READ_BYTES: Final = 65536
#: Bytes of a packet's head at most: its type, and four of length.
_LONGEST_HEAD: Final = 5
_PUBLISH_QOS1: Final = 0x32
_PUBACK: Final = 0x40


class Endpoint:
    """A broker's address and credentials, read from a URL.

    `url`: ``mqtt://[user:password@]host[:1883]`` or, over TLS, ``mqtts://[...]host[:8883]``. User
    and password are percent-encoded where they hold ``:``, ``/`` or ``@``. `ca_file`: certificates
    of the authorities trusted for TLS; the system's if left out. `cert_file`, `key_file`: the
    client's own certificate and key. The attribute `url` has no user and password: it is fit for
    logs. Raises InputError if the URL is malformed, or a file is missing or cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:  # a bracket without its other half, or no address in a pair
            raise InputError(f"the broker's URL must be {_FORM}, an IPv6 address in []") from None
        self.host, self.port = _host_and_port(parts)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{parts.scheme}://{host}:{self.port}"
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password else None
        self.tls = parts.scheme == "mqtts"
        if key_file is not None and cert_file is None:
            raise InputError(f"key_file {key_file} needs its cert_file beside it")
        files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
        for what, path in files.items():
            if path is not None and not self.tls:
                raise InputError(f"{what} is for TLS; the broker's URL must begin with mqtts://")
            if path is not None and not Path(path).is_file():
                raise InputError(f"{what} {path} does not exist")
        self._own = None if cert_file is None else (str(cert_file), key_file)
        self._context = self._tls_context(ca_file, cert_file, key_file) if self.tls else None

    @property
    def certificate_expires(self) -> float | None:
        """When the client's own certificate expires, in Unix seconds; None without one."""
        if self._own is None:
            return None
        from cryptography import x509

        try:
            content = Path(self._own[0]).read_bytes()
            return x509.load_pem_x509_certificate(content).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            return 0.0

    def reload_certificate(self) -> None:
        """Use the certificate that its file holds now from the next connection on."""
        if self._context is None or self._own is None:
            return
        try:
            self._context.load_cert_chain(*self._own)
        except (ssl.SSLError, OSError) as error:
            _LOG.warning("certificate %s cannot be read again: %s", self._own[0], error)

    @staticmethod
    def _tls_context(
        ca_file: str | Path | None, cert_file: str | Path | None, key_file: str | Path | None
    ) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=ca_file)
            if cert_file is not None:
                context.load_cert_chain(cert_file, key_file)
        except (ssl.SSLError, OSError) as error:
            given = ", ".join(str(path) for path in (ca_file, cert_file, key_file) if path)
            raise InputError(f"the TLS files cannot be used ({given}): {error}") from None
        return context

    def prepare(self, client: paho.Client) -> None:
        """Give `client` the credentials and TLS settings."""
        if self.user is not None:
            client.username_pw_set(self.user, self.password)
        if self._context is not None:
            client.tls_set_context(self._context)


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    shown = f"{parts.scheme}://{parts.hostname or ''}"
    if parts.scheme not in ("mqtt", "mqtts"):
        raise InputError(
            "the broker's URL must begin with mqtt:// or mqtts://, as mqtt://localhost"
        )
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"broker {shown}: the port is not a number up to 65535") from None
    host = parts.hostname or ""
    try:
        host.encode("idna")  # as a look-up does; what it raises, paho's thread would not survive
    except UnicodeError:
        host = ""
    if not host or port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
        raise InputError(f"broker {shown}: the URL must be {_FORM}")
    return host, port or (8883 if parts.scheme == "mqtts" else 1883)


class BrokerClient(paho.Client):
    """A client that handles all that has come in, writes at once on any thread, outlives damage.

    paho reads a packet's head byte by byte, has its network thread woken to write what any thread
    publishes, and ends that thread at a packet that it cannot read: then a process lives and hears
    nothing. Here such a packet ends the connection, and paho connects again.

    Ids of messages of :meth:`send` are `unacked` until the broker has them: then `on_ack` gets
    them, on the network thread.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.on_ack: Callable[[int], None] = lambda mid: None
        self.unacked: set[int] = set()
        self._chunk = memoryview(bytearray(_READ_BYTES))
        self._came = bytearray()
        # OpenSSL's connections are for one thread at a time, for reads and writes.
        self._using_socket = threading.RLock()

    @property
    def unread(self) -> bool:
        """Whether bytes were received and not handled yet."""
        return bool(self._came)

    def forget(self) -> None:
        """Drop what the last connection left."""
        self._came.clear()
        self.unacked.clear()

    def send(self, topic: str, payload: bytes) -> int | None:
        """Publish at QoS 1, on this connection or not at all; return its id, None if not taken."""
        if not self.is_connected() or len(self.unacked) >= self._max_inflight_messages:
            return None
        mid = self._mid_generate()
        name = topic.encode()
        packet = bytearray((_PUBLISH_QOS1,))
        self._pack_remaining_length(packet, len(name) + len(payload) + 4)
        packet += len(name).to_bytes(2) + name + mid.to_bytes(2) + payload
        self.unacked.add(mid)
        self._packet_queue(_PUBLISH_QOS1, packet, mid, 1)
        return mid

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Receive what there is, and handle all packets that are whole."""
        sock: Any = self._sock
        if sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        try:
            with self._using_socket:
                size = sock.recv_into(self._chunk)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except OSError:
            size = 0
        code = MQTTErrorCode.MQTT_ERR_SUCCESS if size else MQTTErrorCode.MQTT_ERR_CONN_LOST
        self._came += self._chunk[:size]
        self._last_bytes_received = time.monotonic()
        while not code and self._next_packet():
            code = self._packet_handle()
        return self._loop_rc_handle(code) if code else code

    def _next_packet(self) -> bool:
        """Take the next packet out of what was received; False if it is not whole."""
        came, size, at = self._came, 0, 1
        while at < len(came):
            size |= (came[at] & 0x7F) << 7 * (at - 1)
            at += 1
            if came[at - 1] < 0x80 or at == _LONGEST_HEAD:
                break
        else:
            return False
        command = came[0]
        if came[at - 1] >= 0x80:  # a length of more than four bytes: paho refuses type 0
            command = size = 0
        if len(came) < at + size:
            return False
        packet: Any = {"command": command, "packet": came[at : at + size], "pos": 0}
        self._in_packet = packet | {"remaining_length": size}
        del came[: at + size]
        return True

    def loop_write(self) -> MQTTErrorCode:
        """Write what is queued; on any thread."""
        with self._using_socket:
            return super().loop_write()

    def _packet_queue(
        self, command: int, packet: Any, mid: int, qos: int, info: Any = None
    ) -> MQTTErrorCode:
        sent = 0
        with self._using_socket:
            # Of other packets paho has to do more after the write.
            if qos == 1 and not self._out_packet:
                try:
                    sent = self._sock_send(packet)
                    self._last_msg_out = time.monotonic()
                except (OSError, ValueError):
                    _LOG.debug("a packet waits for the network thread")
                if sent == len(packet):
                    return MQTTErrorCode.MQTT_ERR_SUCCESS
            return super()._packet_queue(command, packet[sent:], mid, qos, info)

    def _packet_handle(self) -> MQTTErrorCode:
        try:
            if self._in_packet["command"] == _PUBACK:
                mid = int.from_bytes(self._in_packet["packet"][:2])
                if mid in self.unacked:
                    self.unacked.discard(mid)
                    self.on_ack(mid)
                    return MQTTErrorCode.MQTT_ERR_SUCCESS
            return super()._packet_handle()
        except Exception:
            _LOG.exception("a packet from the broker cannot be handled: connecting again")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL


def make_client(endpoint: Endpoint, client_id: str, *, max_inflight: int) -> BrokerClient:
    """Make a paho client for 3.1.1 with a clean session, no Nagle delay and jittered back-off.

    At most `max_inflight` QoS 1 messages are unacknowledged at a time; none is queued beyond them.
    """
    client = BrokerClient(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=paho.MQTTv311,
        clean_session=True,
    )
    client.max_inflight_messages_set(max_inflight)
    client.max_queued_messages_set(max_inflight)
    client.on_socket_open = _tune_socket
    client.on_pre_connect = lambda *_: endpoint.reload_certificate()
    endpoint.prepare(client)
    spread_backoff(client)
    return client


def spread_backoff(client: paho.Client) -> None:
    """Draw new reconnect delays: from about 1 s, doubling to about a minute."""
    jitter = random.uniform(0.5, 1.5)
    client.reconnect_delay_set(jitter, jitter * _LONGEST_BACKOFF)  # type: ignore[arg-type]


def why_lost(reason: object) -> str:
    """Why a connection ended, from paho's reason: it has no word for one that was closed."""
    text = str(reason)
    return "the broker closed the connection" if text == "Unspecified error" else text


def _tune_socket(client: Any, userdata: Any, sock: Any) -> None:
    client.forget()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A dead peer is noticed after this, not after the keepalive's one and a half periods.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
