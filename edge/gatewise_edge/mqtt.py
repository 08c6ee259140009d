"""The link over MQTT 3.1.1, for any broker.

What paho-mqtt does by default and a device must not have: Nagle's delay (44 ms a request instead
of 1), a reconnect without jitter (a fleet that comes back in step), and a queue that replays on
reconnect what was asked before. Here a request that meets no connection is refused at once, and
what was on its way when the connection broke is dropped: the device has answered by itself.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_edge.errors import LinkError
from gatewise_edge.link import Receive
from gatewise_edge.wire import check_device, request_topic, response_topic, status_topic
from gatewise_training.errors import InputError

__all__ = ["Endpoint", "MqttLink", "make_client"]

_LOG = logging.getLogger(__name__)

_KEEPALIVE: Final = 10
_USER_TIMEOUT_MS: Final = 3000
_LONGEST_BACKOFF: Final = 60


class Endpoint:
    """A broker's address and credentials, read from a URL.

    Parameters
    ----------
    url : str
        ``mqtt://[user:password@]host[:1883]`` or, over TLS, ``mqtts://[...]host[:8883]``.
        User and password are percent-encoded where they hold ``:``, ``/`` or ``@``.
    ca_file : str or Path, optional
        Certificates of the authorities trusted for TLS; the system's if left out.
    cert_file, key_file : str or Path, optional
        The client's own certificate and key.

    Attributes
    ----------
    host : str
    port : int
    url : str
        Without user and password: fit for logs.

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
        parts = urlsplit(url)
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
        self._context = self._tls_context(ca_file, cert_file, key_file) if self.tls else None

    @staticmethod
    def _tls_context(
        ca_file: str | Path | None, cert_file: str | Path | None, key_file: str | Path | None
    ) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=ca_file)
            if cert_file is not None:
                context.load_cert_chain(cert_file, key_file)
        except (ssl.SSLError, OSError) as error:
            raise InputError(f"the TLS files cannot be used: {error}") from None
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
        raise InputError(f"broker {shown}: the URL must begin with mqtt:// or mqtts://")
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"broker {shown}: the port is not a number up to 65535") from None
    if not parts.hostname or port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
        raise InputError(f"broker {shown}: the URL must be mqtt://[user:password@]host[:port]")
    return parts.hostname, port or (8883 if parts.scheme == "mqtts" else 1883)


def make_client(endpoint: Endpoint, client_id: str, *, max_inflight: int) -> paho.Client:
    """Make a paho client for 3.1.1 with a clean session, no Nagle delay and jittered back-off.

    Parameters
    ----------
    endpoint : Endpoint
    client_id : str
    max_inflight : int
        QoS 1 messages unacknowledged at a time; none is queued beyond them.

    Returns
    -------
    paho.mqtt.client.Client
        Not connected yet.
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
    spread_backoff(client)
    return client


def spread_backoff(client: paho.Client) -> None:
    """Draw new reconnect delays: from about 1 s, doubling to about a minute."""
    jitter = random.uniform(0.5, 1.5)
    client.reconnect_delay_set(jitter, jitter * _LONGEST_BACKOFF)  # type: ignore[arg-type]


def _tune_socket(client: paho.Client, userdata: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A dead peer is noticed after this, not after the keepalive's one and a half periods.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


class MqttLink:
    """A device's link to the cloud through an MQTT broker.

    Publishes requests at QoS 1 on ``gw/v1/<device>/req``, reads ``gw/v1/<device>/rsp``, and
    keeps ``gw/v1/<device>/status`` at ``online`` or, by the broker's hand when the device
    vanishes, ``offline``. Connects in the background and keeps trying, so that a device may
    start before its broker; :meth:`connect` insists.

    Parameters
    ----------
    url : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``
    device : str, optional
        The device's id: one topic level, unique in the fleet. Drawn at random if left out.
    max_inflight : int, default 64
        Requests that the broker has not acknowledged; more are refused at once.
    ca_file, cert_file, key_file : str or Path, optional
        See :class:`Endpoint`.

    Attributes
    ----------
    device : str
    url : str
        The broker's, without user and password.

    Raises
    ------
    InputError
        If the URL or a TLS file cannot be used.
    WireError
        If the device id cannot be a topic level.
    """

    def __init__(
        self,
        url: str,
        *,
        device: str | None = None,
        max_inflight: int = 64,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
        self.url = self._endpoint.url
        self.device = check_device(device or f"dev-{secrets.token_hex(6)}")
        self._topic = request_topic(self.device)
        self._receive: Receive = _drop
        self._open = False
        # Guards nothing that a callback waits for: paho holds locks of its own while it calls.
        self._verdict = threading.Event()
        self._failure: str | None = None
        self._ready = False
        self._subscription: int | None = None
        self._client = make_client(self._endpoint, f"gw-{self.device}", max_inflight=max_inflight)
        self._client.will_set(status_topic(self.device), "offline", qos=1, retain=True)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    @property
    def ready(self) -> bool:
        """Whether the connection stands and the subscription to responses is confirmed."""
        return self._ready and self._client.is_connected()

    def open(self, receive: Receive) -> None:
        """Connect in the background. See :meth:`gatewise_edge.link.Link.open`."""
        self._receive = receive
        self._start()

    def connect(self, timeout: float = 5.0) -> None:
        """Wait until the link is ready.

        Raises
        ------
        LinkError
            If the broker refuses, cannot be reached, or does not answer within `timeout`
            seconds. The link goes on trying in the background until it is closed.
        """
        self._start()
        done = self._verdict.wait(timeout)
        if self.ready:
            return
        why = self._failure if done and self._failure else f"no answer within {timeout:g} s"
        raise LinkError(self.url, f"broker {self.url} cannot be used: {why}")

    def send(self, payload: bytes) -> bool:
        """Publish a request, if the link is ready. See :meth:`gatewise_edge.link.Link.send`."""
        if not self.ready:
            return False
        info = self._client.publish(self._topic, payload, qos=1)
        return info.rc == paho.MQTT_ERR_SUCCESS

    def close(self) -> None:
        """Say ``offline``, disconnect, and end the network thread. May be called twice."""
        if not self._open:
            return
        self._open = False
        self._receive = _drop
        if self._client.is_connected():
            farewell = self._client.publish(
                status_topic(self.device), "offline", qos=1, retain=True
            )
            try:
                farewell.wait_for_publish(timeout=1.0)
            except (RuntimeError, ValueError):
                _LOG.debug("the broker went before the farewell")
        self._client.disconnect()
        self._client.loop_stop()
        self._ready = False

    def _start(self) -> None:
        if not self._open:
            self._open = True
            self._client.connect_async(
                self._endpoint.host, self._endpoint.port, keepalive=_KEEPALIVE
            )
            self._client.loop_start()

    # -- callbacks, on paho's thread -------------------------------------------------------

    def _on_connect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        # paho would send again what the last connection left: by now it is stale.
        client.drop_out_messages()
        if reason.is_failure:
            self._fail(str(reason))
            return
        spread_backoff(client)
        _, self._subscription = client.subscribe(response_topic(self.device), qos=1)
        client.publish(status_topic(self.device), "online", qos=1, retain=True)

    def _on_subscribe(
        self, client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        if mid != self._subscription:
            return
        if any(reason.is_failure for reason in reasons):
            self._fail(f"the subscription to {response_topic(self.device)} is not allowed")
            return
        self._ready = True
        self._failure = None
        self._verdict.set()
        _LOG.info("link to %s is ready", self.url)

    def _on_connect_fail(self, client: paho.Client, userdata: Any) -> None:
        # paho calls this while it handles the error and does not pass it on.
        error = sys.exception()
        text = getattr(error, "strerror", None) or str(error or "no connection")
        self._fail(text)

    def _on_disconnect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self._ready = False
        if self._open and reason.is_failure:
            _LOG.info("link to %s is lost: %s", self.url, reason)
            # A refused connection has said why already.
            self._fail(self._failure or str(reason))

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        try:
            self._receive(bytes(message.payload))
        except Exception:
            # An escaping exception would end paho's thread, and every response after it.
            _LOG.exception("a response could not be taken in")

    def _fail(self, why: str) -> None:
        self._failure = why
        self._verdict.set()


def _drop(payload: bytes) -> None:
    """Take a payload that nobody waits for."""
