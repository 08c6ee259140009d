"""A broker's address, and a client tuned for it.

What paho-mqtt does by default and neither device nor worker must have: Nagle's delay (44 ms per
request instead of 1), and a dead peer that is noticed only by the keepalive.
"""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise.errors import InputError
from gatewise_edge.link.packet_limit import limited_context

_LOG = logging.getLogger(__name__)

_FORM: Final = "mqtt://[user:password@]host[:port]"
_ENCODED: Final = (
    "in a user or password write # as %23, / as %2F, ? as %3F, @ as %40, : as %3A, [ as %5B"
)
_USER_TIMEOUT_MS: Final = 3000


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
            address = urlsplit(url)
        except ValueError:  # a bracket without its other half, or no address in a pair
            raise InputError(
                f"the broker's URL must be {_FORM}, an IPv6 address in []; {_ENCODED}"
            ) from None
        self.host, self.port = _host_and_port(address)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{address.scheme}://{host}:{self.port}"
        self.user = unquote(address.username) if address.username else None
        self.password = unquote(address.password) if address.password else None
        self.tls = address.scheme == "mqtts"
        if key_file is not None and cert_file is None:
            raise InputError(f"key_file {key_file} needs a cert_file")
        files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
        for option, path in files.items():
            if path is not None and not self.tls:
                raise InputError(f"{option} is for TLS; the broker's URL must begin with mqtts://")
            if path is not None and not Path(path).is_file():
                raise InputError(f"{option} {path} does not exist")
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
            files = ", ".join(str(path) for path in (ca_file, cert_file, key_file) if path)
            raise InputError(f"the TLS files cannot be used ({files}): {error}") from None
        return context

    def prepare(self, client: paho.Client) -> None:
        """Give `client` the credentials and TLS settings."""
        if self.user is not None:
            client.username_pw_set(self.user, self.password)
        client.tls_set_context(limited_context(self._context))


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    text = f"{parts.scheme}://{parts.hostname or ''}"
    if parts.scheme not in ("mqtt", "mqtts"):
        raise InputError(
            "the broker's URL must begin with mqtt:// or mqtts://, as mqtt://localhost"
        )
    # of user:p#ss@host all behind the # is no part of the address
    if any("@" in rest for rest in (parts.path, parts.query, parts.fragment)):
        raise InputError(f"the broker's URL must be {_FORM}; {_ENCODED}")
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"broker {text}: the port is not a number up to 65535") from None
    host = parts.hostname or ""
    try:
        host.encode("idna")  # as a look-up does; paho's thread would not survive its error
    except UnicodeError:
        host = ""
    if not host or port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
        raise InputError(f"broker {text}: the URL must be {_FORM}")
    return host, port or (8883 if parts.scheme == "mqtts" else 1883)


def make_client(endpoint: Endpoint, client_id: str, *, max_inflight: int) -> paho.Client:
    """Make a paho client for 3.1.1 with a clean session and no Nagle delay.

    At most `max_inflight` QoS 1 messages are unacknowledged at a time; none is queued beyond them.
    A packet above :data:`.MAX_PACKET` ends its connection at its header.
    """
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=paho.MQTTv311,
        clean_session=True,
    )
    client.max_inflight_messages_set(max_inflight)
    client.max_queued_messages_set(max_inflight)
    client.on_socket_open = _tune_socket
    endpoint.prepare(client)
    return client


def why_lost(reason: object) -> str:
    """Why a connection ended, from paho's reason: it has no word for one that was closed."""
    text = str(reason)
    return "the broker closed the connection" if text == "Unspecified error" else text


def _tune_socket(client: object, userdata: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A dead peer is noticed after this, not after the keepalive's one and a half periods.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
