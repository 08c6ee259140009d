"""The link over MQTT 3.1.1, for any broker.

Without a connection a request is refused at once. Requests that are in flight when the connection
breaks are dropped, because they would be stale if they were sent later. See
:mod:`gatewise_edge.link.connection`.
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
from gatewise_edge.link.broker_url import Endpoint, make_client
from gatewise_edge.link.connection import BrokerConnection
from gatewise_edge.link.device_identity import DeviceIdentity
from gatewise_edge.link.link import Receive
from gatewise_edge.link.topics import (
    answers_topic,
    corrections_topic,
    request_topic,
    response_topic,
    session_topic,
    status_topic,
)

__all__ = ["Endpoint", "MqttLink", "make_client"]

_LOG = logging.getLogger(__name__)

_LONGEST_DETAIL: Final = 300
_LONGEST_TOPIC: Final = 256
#: Seconds to wait at the end until the broker has the status ``offline``.
_FAREWELL_SECONDS: Final = 1.0


class MqttLink:
    """A device's link to the cloud through an MQTT broker.

    Publishes requests at QoS 1 on ``gw/v1/<device>/req`` and reads ``gw/v1/<device>/rsp``. The
    retained status ``gw/v1/<device>/status`` is ``online``, with the detail that
    :meth:`set_status` adds; the last will sets it to ``offline``. Connects in the background and
    keeps trying, so that a device may start before its broker; :meth:`connect` waits for it.

    Parameters
    ----------
    url : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``
    device : str, optional
        The device's id: one topic level, unique in the fleet. Drawn at random if left out.
    max_inflight : int, default 64
        Largest number of requests that the broker has not acknowledged; further ones are refused.
    ca_file, cert_file, key_file : str or Path, optional
        See :class:`Endpoint`.

    Attributes
    ----------
    device : str
    url : str
        URL of the broker, without user and password.
    connection : int
        Number of the connection on which the link was last ready; 0 before the first.

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
        self._responses = response_topic(self.device)
        self._receive: Receive = _drop
        self._open = False
        self._ready = False
        self._attempt_ended = threading.Event()
        self._failure: str | None = None
        self.connection = 0
        self._when_ready: list[Callable[[], None]] = []
        self._status = "online"
        self._identity = DeviceIdentity(self.device)
        self._handlers: dict[str, Receive] = {session_topic(self.device): self._identity.read}
        #: The topic of each SUBSCRIBE that the broker has not acknowledged, by its id.
        self._pending_subacks: dict[int, str] = {}
        self._broker = BrokerConnection(
            self._endpoint,
            f"gw-{self.device}",
            max_unacked=max_inflight + 1,  # the status is one
            on_connect=self._on_connect,
            on_subscribe=self._on_subscribe,
            on_message=self._on_message,
            on_disconnect=self._on_disconnect,
            last_will=(status_topic(self.device), "offline"),
        )

    @property
    def ready(self) -> bool:
        """Whether the link is connected and its subscription to responses is confirmed."""
        return self._ready and self._broker.connected

    def open(self, receive: Receive) -> None:
        """Connect in the background; `receive` gets every response. See :meth:`.Link.open`."""
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
        if self.ready or (self._attempt_ended.wait(timeout) and self.ready):
            return
        self._attempt_ended.clear()  # a further call waits for the next attempt
        why = self._failure or f"no answer within {timeout:g} s"
        raise LinkError(self.url, f"broker {self.url} cannot be used: {why}")

    def watch(self, topic: str, handle: Receive) -> None:
        """Subscribe to one more topic, again on every connection; call this before opening.

        `topic` may be a filter such as ``gw/v1/model/<name>/manifest``. If the broker denies it,
        that is logged and the link works without it. `handle` gets each message's payload,
        unchecked and perhaps more than once, on the network thread; it must not block, and its
        errors are logged. InputError if the link is open, or the topic is watched already.
        """
        if self._open:
            raise InputError(f"topic {topic}: watch it before the link is opened")
        if topic in self._handlers:
            raise InputError(f"topic {topic} is watched already")
        self._handlers[topic] = handle

    @property
    def takeovers(self) -> int:
        """Number of times that another device with this id has taken over the connection."""
        return self._identity.takeovers

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
        """When its certificate expires, in Unix seconds; None without one."""
        return self._endpoint.certificate_expires

    def check_answers_topic(self, topic: str) -> None:
        """Raise InputError if answers may not go on `topic`: it is malformed or reserved."""
        size = len(topic.encode("utf-8", "replace"))
        if not 0 < size <= _LONGEST_TOPIC or any(c in topic for c in "+#\0"):
            raise InputError(
                f"cannot publish on topic {topic[:80]!r}: give 1 to {_LONGEST_TOPIC} bytes without "
                "'+', '#' and NUL"
            )
        own_topics = (answers_topic(self.device), corrections_topic(self.device))
        if topic.startswith("gw/v1/") and topic not in own_topics:
            raise InputError(f"topic {topic}: below gw/v1/ answers go on {own_topics[0]} alone")

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish `payload` on `topic` at QoS 1 if the link is ready; get whether it was accepted.

        With `retain` the broker keeps it for those who subscribe later.
        """
        return self._ready and self._broker.publish(topic, payload, retain=retain)

    def deliver(self, topic: str, payload: bytes, acknowledged: Callable[[], None]) -> bool:
        """Publish `payload` on `topic` over this :attr:`connection`; get whether it was accepted.

        `acknowledged` is called on the network's thread once the broker has it; never if the
        connection ends before.
        """
        return self._ready and self._broker.publish(topic, payload, acknowledged=acknowledged)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Have `call` called on the network's thread whenever the link becomes ready."""
        self._when_ready.append(call)

    def set_status(self, detail: str) -> None:
        """Set the retained status to ``online <detail>``, such as ``online digits/7``.

        InputError if `detail` is longer than 300 bytes.
        """
        if len(detail.encode("utf-8", "replace")) > _LONGEST_DETAIL:
            raise InputError(f"a status of more than {_LONGEST_DETAIL} bytes")
        self._status = f"online {detail}".rstrip()
        # Otherwise it is published on connecting.
        self._publish_status(self._status)

    def send(self, payload: bytes) -> bool:
        """Publish a request's `payload`, if the link is ready. See :meth:`.Link.send`."""
        return self._ready and self._broker.publish(self._topic, payload)

    def close(self) -> None:
        """Publish ``offline``, disconnect, and end the network thread. May be called twice."""
        if not self._open:
            return
        self._open = False
        self._receive = _drop
        if not self._identity.takeovers:
            self._broker.publish(session_topic(self.device), b"", qos=0, retain=True)
        acknowledged = threading.Event()
        if self._publish_status("offline", acknowledged.set):
            acknowledged.wait(_FAREWELL_SECONDS)
        self._broker.close()
        self._ready = False

    def _publish_status(self, status: str, acknowledged: Callable[[], None] | None = None) -> bool:
        topic = status_topic(self.device)
        return self._broker.publish(topic, status, retain=True, acknowledged=acknowledged)

    def _start(self) -> None:
        if not self._open:
            self._open = True
            self._broker.start()

    # -- events, on the network thread -----------------------------------------------------

    def _on_connect(self) -> None:
        self._pending_subacks.clear()
        for topic in (self._responses, *self._handlers):
            packet_id = self._broker.subscribe([topic])
            if packet_id is not None:
                self._pending_subacks[packet_id] = topic
        # After the subscription, so that another process's mark is read first; at QoS 0, so
        # that requests need not wait for its acknowledgement.
        mark = self._identity.mark
        self._broker.publish(session_topic(self.device), mark, qos=0, retain=True)
        self._publish_status(self._status)

    def _on_subscribe(self, packet_id: int, reasons: Sequence[ReasonCode]) -> None:
        topic = self._pending_subacks.pop(packet_id, None)
        denied = any(reason.is_failure for reason in reasons)
        if topic == self._responses and not denied:
            self._become_ready()
        elif topic is not None and denied:
            _LOG.warning("the subscription to %s is not allowed", topic)
            if topic == self._responses:
                self._fail(f"the subscription to {topic} is not allowed")

    def _become_ready(self) -> None:
        self.connection += 1
        self._ready = True
        if self._failure is not None:
            _LOG.info("link to %s is ready again", self.url)
        self._failure = None
        self._attempt_ended.set()
        for call in self._when_ready:
            call()

    def _on_disconnect(self, why: str) -> None:
        if self._ready:
            _LOG.info("link to %s is lost: %s", self.url, why)
        self._ready = False
        self._fail(why)

    def _on_message(self, message: paho.MQTTMessage) -> None:
        topic = message.topic
        payload = bytes(message.payload)
        if topic == self._responses:
            self._receive(payload)
            return
        for topic_filter, handle in self._handlers.items():
            if paho.topic_matches_sub(topic_filter, topic):
                handle(payload)

    def _fail(self, why: str) -> None:
        self._failure = why
        self._attempt_ended.set()


def _drop(payload: bytes) -> None:
    """Ignore a payload: the link is closed."""
