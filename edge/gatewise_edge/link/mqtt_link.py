"""The link over MQTT 3.1.1, for any broker.

Without a connection the link refuses requests at once. When the connection breaks, it drops the
requests that it has not sent, because they would be stale later.
:mod:`gatewise_edge.link.broker_connection` implements the connection.

The network thread writes the state of the link, and other threads read it without a lock. This is
safe, because each attribute is a single value, and a thread that reads an old value acts as if it
had read before the event. The handlers do not change while the link is open.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from gatewise.errors import InputError
from gatewise_edge.checks import check_device
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_connection import BrokerConnection
from gatewise_edge.link.device_identity import DeviceIdentity
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.link import PayloadHandler
from gatewise_edge.link.topics import (
    answers_topic,
    corrections_topic,
    request_topic,
    response_topic,
    session_topic,
    status_topic,
)

_LOG = logging.getLogger(__name__)

#: Largest size of a status detail in bytes. It has a model and a version, of 64 bytes each, and
#: counts.
_MAX_DETAIL_BYTES: Final = 300
#: Largest size of a topic for answers in bytes: the limit of AWS IoT Core.
_MAX_TOPIC_BYTES: Final = 256
#: Longest wait on closing until the broker has acknowledged the status ``offline``, in seconds.
#: A broker that can be reached does so within a round trip.
_OFFLINE_ACK_SECONDS: Final = 1.0


class MqttLink:
    """A device's link to the cloud through an MQTT broker.

    The link publishes requests at QoS 1 on ``gw/v1/<device>/req`` and subscribes to
    ``gw/v1/<device>/rsp``. The retained status on ``gw/v1/<device>/status`` is ``online`` with the
    detail that :meth:`set_status` adds; the last will sets it to ``offline``. The link connects in
    the background and retries until it is closed, so a device may start before its broker.
    :meth:`connect` waits for the connection.

    Parameters
    ----------
    url : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``
    device : str, optional
        Id of the device: a single topic level that is unique in the fleet. The default is the name
        in a certificate of ``gatewise broker``, or else random.
    max_inflight : int, default 64
        Largest number of messages that the broker has not acknowledged, besides one status. The
        link refuses more.
    ca_file, cert_file, key_file : str or Path, optional
        See :class:`Endpoint`.

    Attributes
    ----------
    device : str
    url : str
        URL of the broker, without user and password.
    certificate_name : str or None
        Name in a certificate of ``gatewise broker``.
    connection_number : int
        Number of times that the link has become ready.

    Raises
    ------
    InputError
        If the URL or a TLS file cannot be used, or ``gatewise broker`` made the certificate for
        another device.
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
        self.certificate_name = self._endpoint.certificate_name
        if self.certificate_name is not None and device not in (None, self.certificate_name):
            raise InputError(
                f"cert_file {cert_file} is the certificate of {self.certificate_name!r}, which the "
                f"broker gives no rights for device {device!r}: give --device "
                f"{self.certificate_name}, or this device's certificate"
            )
        default_device = self.certificate_name or f"dev-{secrets.token_hex(6)}"
        self.device = check_device(device or default_device)
        self._request_topic = request_topic(self.device)
        self._response_topic = response_topic(self.device)
        self._receive: PayloadHandler = _ignore_payload
        self._is_open = False
        self._is_ready = False
        #: Set when an attempt to connect has succeeded or failed.
        self._attempt_ended = threading.Event()
        self._failure: str | None = None
        self.connection_number = 0
        self._ready_callbacks: list[Callable[[], None]] = []
        self._status = "online"
        self._identity = DeviceIdentity(self.device)
        self._handlers: dict[str, PayloadHandler] = {
            session_topic(self.device): self._identity.receive
        }
        #: The topic of each SUBSCRIBE that the broker has not acknowledged, by its id.
        self._pending_subacks: dict[int, str] = {}
        self._broker = BrokerConnection(
            self._endpoint,
            f"gw-{self.device}",
            max_unacked=max_inflight + 1,  # one more for the status
            on_connect=self._on_connect,
            on_subscribe=self._on_subscribe,
            on_message=self._on_message,
            on_disconnect=self._on_disconnect,
            last_will=(status_topic(self.device), "offline"),
        )

    @property
    def is_ready(self) -> bool:
        """Whether the link is connected and its subscription to responses is confirmed."""
        return self._is_ready and self._broker.is_connected

    def open(self, receive: PayloadHandler) -> None:
        """Connect in the background; `receive` gets every response, see :meth:`.Link.open`."""
        self._receive = receive
        self._start_connection()

    def connect(self, timeout: float = 5.0) -> None:
        """Wait until the link is ready.

        Raises
        ------
        LinkError
            If the broker refuses, cannot be reached, or does not answer within `timeout`
            seconds. The link continues to retry in the background until it is closed.
        """
        self._start_connection()
        if self.is_ready or (self._attempt_ended.wait(timeout) and self.is_ready):
            return
        self._attempt_ended.clear()  # a further call waits for the next attempt
        failure = self._failure or f"no answer within {timeout:g} s"
        raise LinkError(self.url, f"broker {self.url} cannot be used: {failure}")

    def watch(self, topic: str, handler: PayloadHandler) -> None:
        """Subscribe to another topic on every connection; call this before opening.

        `topic` may be a topic filter. If the broker denies the subscription, the link logs a
        warning and works without it. The network thread calls `handler` with the unchecked payload
        of each message, perhaps twice for the same message. `handler` must not block, and its
        errors are logged. Raises InputError if the link is open or the topic is already watched.
        """
        if self._is_open:
            raise InputError(f"topic {topic}: watch it before the link is opened")
        if topic in self._handlers:
            raise InputError(f"topic {topic} is already watched")
        self._handlers[topic] = handler

    @property
    def n_takeovers(self) -> int:
        """Number of times that another device with this id has taken over the connection."""
        return self._identity.n_takeovers

    @property
    def trouble(self) -> str | None:
        """Description of another device that uses this id; None without one."""
        return self._identity.trouble

    @property
    def n_oversized(self) -> int:
        """Connections that ended because the broker sent a packet that was too large."""
        return self._broker.n_oversized

    @property
    def certificate_expires(self) -> float | None:
        """Expiry time of the device's certificate in Unix seconds; None without a certificate."""
        return self._endpoint.certificate_expires

    def check_answers_topic(self, topic: str) -> None:
        """Raise InputError unless answers may be published on `topic`."""
        n_bytes = len(topic.encode("utf-8", "replace"))
        if not 0 < n_bytes <= _MAX_TOPIC_BYTES or any(character in topic for character in "+#\0"):
            raise InputError(
                f"cannot publish on topic {topic[:80]!r}: give 1 to {_MAX_TOPIC_BYTES} bytes "
                "without '+', '#' and NUL"
            )
        allowed_topics = (answers_topic(self.device), corrections_topic(self.device))
        if topic.startswith("gw/v1/") and topic not in allowed_topics:
            raise InputError(f"topic {topic}: below gw/v1/ use {allowed_topics[0]} for answers")

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        on_ack: Callable[[], None] | None = None,
    ) -> bool:
        """Publish `payload` on `topic` at QoS 1 if the link is ready; return whether it was ready.

        With `retain` the broker also sends the message to later subscribers. `on_ack` is called on
        the network thread once the broker has acknowledged the message. It is not called if the
        connection ends before.
        """
        return self._is_ready and self._broker.publish(topic, payload, retain=retain, on_ack=on_ack)

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Let the network thread call `callback` whenever the link becomes ready."""
        self._ready_callbacks.append(callback)

    def set_status(self, detail: str) -> None:
        """Set the retained status to ``online <detail>``, such as ``online digits/7``.

        Without a connection, it is published on connecting. Raises InputError if `detail` is longer
        than 300 bytes.
        """
        if len(detail.encode("utf-8", "replace")) > _MAX_DETAIL_BYTES:
            raise InputError(f"the status must have at most {_MAX_DETAIL_BYTES} bytes")
        self._status = f"online {detail}".rstrip()
        self._publish_status(self._status)

    def send(self, payload: bytes) -> bool:
        """Publish the request in `payload` if the link is ready; see :meth:`.Link.send`."""
        return self._is_ready and self._broker.publish(self._request_topic, payload)

    def close(self) -> None:
        """Publish ``offline``, disconnect, and end the network thread. May be called twice."""
        if not self._is_open:
            return
        self._is_open = False
        self._receive = _ignore_payload
        # after a takeover, the mark on the topic may belong to another device
        if not self._identity.n_takeovers:
            self._broker.publish(session_topic(self.device), b"", qos=0, retain=True)
        is_acknowledged = threading.Event()
        if self._publish_status("offline", is_acknowledged.set):
            is_acknowledged.wait(_OFFLINE_ACK_SECONDS)
        self._broker.close()
        self._is_ready = False

    def _publish_status(self, status: str, on_ack: Callable[[], None] | None = None) -> bool:
        topic = status_topic(self.device)
        return self._broker.publish(topic, status, retain=True, on_ack=on_ack)

    def _start_connection(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._broker.start()

    # -- events, on the network thread -----------------------------------------------------

    def _on_connect(self) -> None:
        self._pending_subacks.clear()
        for topic in (self._response_topic, *self._handlers):
            packet_id = self._broker.subscribe([topic])
            if packet_id is not None:
                self._pending_subacks[packet_id] = topic
        # Publish the mark after the subscription, which delivers the mark of another process. Use
        # QoS 0, because unacknowledged messages are bounded.
        mark = self._identity.mark
        self._broker.publish(session_topic(self.device), mark, qos=0, retain=True)
        self._publish_status(self._status)

    def _on_subscribe(self, packet_id: int, reasons: Sequence[ReasonCode]) -> None:
        topic = self._pending_subacks.pop(packet_id, None)
        is_denied = any(reason.is_failure for reason in reasons)
        if topic == self._response_topic and not is_denied:
            self._set_ready()
        elif topic is not None and is_denied:
            _LOG.warning("the subscription to %s is not allowed", topic)
            if topic == self._response_topic:
                self._set_failure(f"the subscription to {topic} is not allowed")

    def _set_ready(self) -> None:
        self.connection_number += 1
        self._is_ready = True
        if self._failure is not None:
            _LOG.info("link to %s is ready again", self.url)
        self._failure = None
        self._attempt_ended.set()
        for callback in self._ready_callbacks:
            callback()

    def _on_disconnect(self, reason: str) -> None:
        if self._is_ready:
            _LOG.info("link to %s is lost: %s", self.url, reason)
        self._is_ready = False
        self._set_failure(reason)

    def _on_message(self, message: paho.MQTTMessage) -> None:
        topic = message.topic
        payload = bytes(message.payload)
        if topic == self._response_topic:
            self._receive(payload)
            return
        for topic_filter, handler in self._handlers.items():
            if paho.topic_matches_sub(topic_filter, topic):
                handler(payload)

    def _set_failure(self, reason: str) -> None:
        self._failure = reason
        self._attempt_ended.set()


def _ignore_payload(payload: bytes) -> None:
    """Ignore a payload that arrives while the link is closed."""
