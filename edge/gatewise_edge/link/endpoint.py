"""A broker's address, and an MQTT client with the settings that devices and workers need.

Two defaults of paho-mqtt are changed: Nagle's algorithm, with which a request takes 44 ms instead
of 1 ms, and the detection of a dead peer by the keepalive alone.
"""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise.errors import InputError
from gatewise_edge.link.packet_limit import limited_context

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_LOG = logging.getLogger(__name__)

_URL_FORM: Final = "mqtt://[user:password@]host[:port]"
_ENCODING_HINT: Final = (
    "in a user or password write # as %23, / as %2F, ? as %3F, @ as %40, : as %3A, [ as %5B"
)
#: Time in ms after which a peer that does not acknowledge data counts as dead. It is shorter than
#: the keepalive, but long enough for several retransmissions over a slow link.
_USER_TIMEOUT_MS: Final = 3000


class Endpoint:
    """A broker's address and credentials.

    Parameters
    ----------
    url : str
        ``mqtt://[user:password@]host[:1883]`` or, over TLS, ``mqtts://[...]host[:8883]``. Special
        characters of user and password are percent-encoded.
    ca_file : str or Path, optional
        Certificates of the authorities to trust for TLS; by default the system's.
    cert_file, key_file : str or Path, optional
        The client's certificate and private key.

    Attributes
    ----------
    url : str
        The URL without user and password, for logs.

    Raises
    ------
    InputError
        If the URL is malformed, or a file is missing or cannot be used.
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
        except ValueError:  # brackets that do not match or do not hold an IPv6 address
            raise InputError(
                f"the broker's URL must be {_URL_FORM}, an IPv6 address in []; {_ENCODING_HINT}"
            ) from None
        self.host, self.port = _host_and_port(address)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{address.scheme}://{host}:{self.port}"
        self.user = unquote(address.username) if address.username else None
        self.password = unquote(address.password) if address.password else None
        self.uses_tls = address.scheme == "mqtts"
        if key_file is not None and cert_file is None:
            raise InputError(f"key_file {key_file} needs a cert_file")
        tls_files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
        for option_name, path in tls_files.items():
            if path is not None and not self.uses_tls:
                raise InputError(
                    f"{option_name} needs TLS: the broker's URL must begin with mqtts://"
                )
            if path is not None and not Path(path).is_file():
                raise InputError(f"{option_name} {path} does not exist")
        self._certificate = None if cert_file is None else (str(cert_file), key_file)
        self._tls_context = (
            self._make_tls_context(ca_file, cert_file, key_file) if self.uses_tls else None
        )

    @property
    def certificate_expires(self) -> float | None:
        """Expiry time of the client's certificate in Unix seconds; None without a certificate.

        0.0 if the file cannot be read.
        """
        if self._certificate is None:
            return None
        certificate = self._read_certificate()
        return 0.0 if certificate is None else certificate.not_valid_after_utc.timestamp()

    @property
    def certificate_name(self) -> str | None:
        """Name in the client's certificate if ``gatewise broker`` made it, otherwise None.

        Such a broker allows only topics of this name.
        """
        certificate = self._read_certificate()
        if certificate is None:
            return None
        subject = {
            attribute.rfc4514_attribute_name: str(attribute.value)
            for attribute in certificate.subject
        }
        is_of_client = subject.get("O") == "gatewise" and "OU" in subject
        return subject.get("CN") if is_of_client else None

    def _read_certificate(self) -> Certificate | None:
        if self._certificate is None:
            return None
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificate(Path(self._certificate[0]).read_bytes())
        except (OSError, ValueError):
            return None

    def reload_certificate(self) -> None:
        """Read the certificate file again, for the following connections."""
        if self._tls_context is None or self._certificate is None:
            return
        try:
            self._tls_context.load_cert_chain(*self._certificate)
        except (ssl.SSLError, OSError) as error:
            _LOG.warning("certificate %s cannot be reloaded: %s", self._certificate[0], error)

    @staticmethod
    def _make_tls_context(
        ca_file: str | Path | None, cert_file: str | Path | None, key_file: str | Path | None
    ) -> ssl.SSLContext:
        try:
            tls_context = ssl.create_default_context(cafile=ca_file)
            if cert_file is not None:
                tls_context.load_cert_chain(cert_file, key_file)
        except (ssl.SSLError, OSError) as error:
            files = ", ".join(str(path) for path in (ca_file, cert_file, key_file) if path)
            raise InputError(f"the TLS files cannot be used ({files}): {error}") from None
        return tls_context

    def prepare(self, client: paho.Client) -> None:
        """Set the credentials and the TLS context of `client`."""
        if self.user is not None:
            client.username_pw_set(self.user, self.password)
        client.tls_set_context(limited_context(self._tls_context))


def _host_and_port(address: SplitResult) -> tuple[str, int]:
    """Get a URL's host and port; InputError, without the password, if it is malformed."""
    safe_url = f"{address.scheme}://{address.hostname or ''}"  # without user and password
    if address.scheme not in ("mqtt", "mqtts"):
        raise InputError(
            "the broker's URL must begin with mqtt:// or mqtts://, such as mqtt://localhost"
        )
    # In user:p#ss@host the text after the # is parsed as a fragment.
    if any("@" in part for part in (address.path, address.query, address.fragment)):
        raise InputError(f"the broker's URL must be {_URL_FORM}; {_ENCODING_HINT}")
    try:
        port = address.port
    except ValueError:
        raise InputError(f"broker {safe_url}: the port is not a number up to 65535") from None
    host = address.hostname or ""
    try:
        host.encode("idna")  # a look-up does the same, but its error would end the network thread
    except UnicodeError:
        host = ""
    if not host or port == 0 or address.path.strip("/") or address.query or address.fragment:
        raise InputError(f"broker {safe_url}: the URL must be {_URL_FORM}")
    # The registered ports of MQTT with and without TLS.
    return host, port or (8883 if address.scheme == "mqtts" else 1883)


def make_client(endpoint: Endpoint, client_id: str, *, max_inflight: int) -> paho.Client:
    """Make a paho client for MQTT 3.1.1 with a clean session and without Nagle's algorithm.

    At most `max_inflight` messages of QoS 1 may be unacknowledged; further ones are refused. The
    header of a packet above :data:`.MAX_PACKET_BYTES` ends the connection.
    """
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv311, clean_session=True
    )
    client.max_inflight_messages_set(max_inflight)
    client.max_queued_messages_set(max_inflight)
    client.on_socket_open = _set_socket_options
    endpoint.prepare(client)
    return client


def disconnect_reason(reason: object) -> str:
    """Describe why a connection ended; paho says "Unspecified error" if the broker closed it."""
    message = str(reason)
    return "the broker closed the connection" if message == "Unspecified error" else message


def _set_socket_options(_client: object, _userdata: object, connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Without this a dead peer is noticed only after one and a half keepalive periods.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
