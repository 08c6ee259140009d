"""The link over MQTT 3.1.1, for any broker.

Without a connection a request is refused at once, and what was on its way when the connection
broke is dropped: paho would replay stale requests on reconnect. See
:mod:`gatewise_edge.link.broker_url` for the client's other settings.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho

from gatewise.errors import InputError
from gatewise_edge.checks import check_device, check_positive
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint, make_client, spread_backoff, why_lost
from gatewise_edge.link.device_identity import DeviceIdentity
from gatewise_edge.link.link import Receive
from gatewise_edge.link.topics import (
    answers_topic,
    metrics_topic,
    part_topic,
    request_topic,
    response_topic,
    session_topic,
    status_topic,
)

__all__ = ["Endpoint", "MqttLink", "make_client"]

_LOG = logging.getLogger(__name__)

_KEEPALIVE: Final = 10
_LONGEST_DETAIL: Final = 300
_LONGEST_TOPIC: Final = 256
#: Parts of a request that the broker has not acknowledged: what is still sent in vain when its
#: deadline passes, and more than most links hold in a round trip.
_PARTS_AHEAD: Final = 4


class MqttLink:
    """A device's link to the cloud through an MQTT broker.

    Publishes requests at QoS 1 on ``gw/v1/<device>/req``, reads ``gw/v1/<device>/rsp``, and
    keeps ``gw/v1/<device>/status`` at ``online``, with what :meth:`set_status` adds, or, as its
    last will, ``offline``. Connects in the background and keeps trying, so that a device may start
    before its broker; :meth:`connect` waits for it.

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
    connection : int
        Number of the connection that it was last ready on; 0 before the first.

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
        self._verdict = threading.Event()
        self._failure: str | None = None
        self._ready = False
        self.connection = 0
        self._when_ready: list[Callable[[], None]] = []
        self._deliveries: dict[int, Callable[[], None]] = {}
        self._delivering = threading.Lock()  # guards the ids of what is being sent
        self._subscription: int | None = None
        self._status = "online"
        self._transfers: deque[tuple[str, Iterator[bytes]]] = deque()  # topics and parts
        self._unacked_parts: set[int] = set()
        self._identity = DeviceIdentity(self.device)
        self._watched: dict[str, Receive] = {session_topic(self.device): self._identity.read}
        self._watching: dict[int, str] = {}
        self._ended = threading.Event()
        self._client = make_client(self._endpoint, f"gw-{self.device}", max_inflight=max_inflight)
        self._client.will_set(status_topic(self.device), "offline", qos=1, retain=True)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_ack = self._on_ack

    @property
    def ready(self) -> bool:
        """Whether the connection stands and the subscription to responses is confirmed."""
        return self._ready and self._client.is_connected()

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
        if self.ready or (self._verdict.wait(timeout) and self.ready):
            return
        self._verdict.clear()  # a further call waits for the next attempt
        why = self._failure or f"no answer within {timeout:g} s"
        raise LinkError(self.url, f"broker {self.url} cannot be used: {why}")

    def watch(self, topic: str, take: Receive) -> None:
        """Subscribe to one more topic, on every connection anew; call this before opening.

        `topic` may be a filter, as ``gw/v1/model/<name>/manifest``; a broker that denies it is
        logged, and the link is not the worse for it. `take` gets each message's payload, unchecked
        and at most 256 MB by MQTT, on the network's thread, perhaps more than once; it must not
        block, and what it raises is logged. InputError if the link is open already, or the topic is
        watched.
        """
        if self._open:
            raise InputError(f"topic {topic}: watch it before the link is opened")
        if topic in self._watched:
            raise InputError(f"topic {topic} is watched already")
        self._watched[topic] = take

    @property
    def takeovers(self) -> int:
        """Times that another device with this id had taken the connection over."""
        return self._identity.takeovers

    @property
    def trouble(self) -> str | None:
        """That another device uses this id, while it does."""
        return self._identity.trouble

    @property
    def certificate_expires(self) -> float | None:
        """When its certificate expires, in Unix seconds; None without one."""
        return self._endpoint.certificate_expires

    def check_answers_topic(self, topic: str) -> None:
        """Refuse a `topic` to publish answers on that is none, or another one of the wire."""
        size = len(topic.encode("utf-8", "replace"))
        if not 0 < size <= _LONGEST_TOPIC or any(c in topic for c in "+#\0"):
            raise InputError(f"topic {topic[:80]!r} is none to publish on: it has '+', '#' or NUL")
        own = answers_topic(self.device)
        if topic.startswith("gw/v1/") and topic != own:
            raise InputError(f"topic {topic}: below gw/v1/ answers go on {own} alone")

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish `payload` on `topic` at QoS 1 if the link is ready; False if it was not taken.

        With `retain` the broker keeps it for those who subscribe later.
        """
        if not self.ready:
            return False
        taken = self._client.publish(topic, payload, qos=1, retain=retain)
        return taken.rc == paho.MQTT_ERR_SUCCESS

    def deliver(self, topic: str, payload: bytes, acknowledged: Callable[[], None]) -> bool:
        """Publish `payload` on `topic`, on this :attr:`connection` or not at all (False).

        `acknowledged` is called on the network's thread once the broker has it; never if the
        connection ends before.
        """
        with self._delivering:
            mid = self._client.send(topic, payload) if self.ready else None
            if mid is not None:
                self._deliveries[mid] = acknowledged
        return mid is not None

    def when_ready(self, call: Callable[[], None]) -> None:
        """Have `call` called on the network's thread whenever the link becomes ready."""
        self._when_ready.append(call)

    def set_status(self, detail: str) -> None:
        """Set the retained status to ``online <detail>``, as ``online digits/7``.

        InputError if `detail` is longer than 300 bytes.
        """
        if len(detail.encode("utf-8", "replace")) > _LONGEST_DETAIL:
            raise InputError(f"a status of more than {_LONGEST_DETAIL} bytes")
        self._status = f"online {detail}".rstrip()
        # Otherwise it is published on connecting.
        if self._client.is_connected():
            self._publish_status(self._status)

    def publish_metrics(
        self, read: Callable[[], Mapping[str, float]], *, every: float = 60.0
    ) -> None:
        """Publish counters on ``gw/v1/<device>/metrics``, at QoS 0, until the link is closed.

        `read` gives them, as ``lambda: device.counters``, on a thread of its own, each `every`
        seconds; without a connection a message is left out.
        """
        check_positive("every", every)

        def publish() -> None:
            while not self._ended.wait(every):
                try:
                    payload = json.dumps(dict(read()), allow_nan=False)
                except Exception:
                    _LOG.exception("the counters cannot be published")
                    continue
                if self.ready:
                    self._client.publish(metrics_topic(self.device), payload, qos=0)

        threading.Thread(target=publish, name="gatewise-metrics", daemon=True).start()

    def send(self, payload: bytes) -> bool:
        """Publish a request's `payload`, if the link is ready. See :meth:`.Link.send`."""
        return self._ready and self._client.send(self._topic, payload) is not None

    def send_parts(self, parts: Iterator[bytes], worker: str) -> None:
        """Publish `parts` to `worker`, a few at a time. See :meth:`.PartLink.send_parts`."""
        self._transfers.append((part_topic(self.device, worker), parts))
        self._send_next()

    def _send_next(self) -> None:
        # On paho's thread alone: an acknowledgement comes after its id is known.
        while self._transfers and len(self._unacked_parts) < _PARTS_AHEAD:
            topic, parts = self._transfers[0]
            payload = next(parts, None)
            mid = None if payload is None else self._client.send(topic, payload)
            if mid is None:
                self._transfers.popleft()
            else:
                self._unacked_parts.add(mid)

    def close(self) -> None:
        """Publish ``offline``, disconnect, and end the network thread. May be called twice."""
        if not self._open:
            return
        self._open = False
        self._ended.set()
        self._receive = _drop
        if self._client.is_connected():
            if not self._identity.takeovers:
                self._client.publish(session_topic(self.device), b"", qos=0, retain=True)
            farewell = self._publish_status("offline")
            try:
                farewell.wait_for_publish(timeout=1.0)
            except (RuntimeError, ValueError):
                _LOG.debug("the broker went before the farewell")
        self._client.disconnect()
        self._client.loop_stop()
        # Else the socket pair that wakes its thread stays open until the garbage collector comes.
        self._client.reinitialise()
        self._transfers.clear()
        self._ready = False

    def _publish_status(self, status: str) -> paho.MQTTMessageInfo:
        return self._client.publish(status_topic(self.device), status, qos=1, retain=True)

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
        self._transfers.clear()
        self._unacked_parts.clear()
        if reason.is_failure:
            self._fail(str(reason))
            return
        spread_backoff(client)
        _, self._subscription = client.subscribe(self._responses, qos=1)
        self._watching.clear()
        for topic in self._watched:
            _, mid = client.subscribe(topic, qos=1)
            if mid is not None:
                self._watching[mid] = topic
        # Behind the subscription, so that what another process left is read first; at QoS 0, so
        # that requests need not wait for its acknowledgement.
        mark = self._identity.mark
        client.publish(session_topic(self.device), mark, qos=0, retain=True)
        self._publish_status(self._status)

    def _on_subscribe(
        self, client: paho.Client, userdata: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        if mid in self._watching:
            if any(reason.is_failure for reason in reasons):
                _LOG.warning("the subscription to %s is not allowed", self._watching[mid])
            return
        if mid != self._subscription:
            return
        if any(reason.is_failure for reason in reasons):
            self._fail(f"the subscription to {self._responses} is not allowed")
            return
        with self._delivering:
            self._deliveries.clear()
        self.connection += 1
        self._ready = True
        if self._failure is not None:
            _LOG.info("link to %s is ready again", self.url)
        self._failure = None
        self._verdict.set()
        for call in self._when_ready:
            call()

    def _on_connect_fail(self, client: paho.Client, userdata: Any) -> None:
        # paho calls this while it handles the error and does not pass it on.
        error = sys.exception()
        text = getattr(error, "strerror", None) or str(error or "no connection")
        self._fail(text)

    def _on_disconnect(
        self, client: paho.Client, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        had, self._ready = self._ready, False
        if self._open and reason.is_failure:
            why = why_lost(reason)
            if had:
                _LOG.info("link to %s is lost: %s", self.url, why)
            # A refused connection has its reason already.
            self._fail(self._failure or why)

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        # An escaping exception would end paho's thread, and every response after it.
        try:
            if message.topic == self._responses:
                self._receive(bytes(message.payload))
                return
        except Exception:
            _LOG.exception("a response could not be handled")
            return
        for topic, take in self._watched.items():
            if paho.topic_matches_sub(topic, message.topic):
                try:
                    take(bytes(message.payload))
                except Exception:
                    _LOG.exception("a message on %s could not be handled", message.topic)

    def _on_ack(self, mid: int) -> None:
        if mid in self._unacked_parts:
            self._unacked_parts.discard(mid)
            self._send_next()
            return
        with self._delivering:
            acknowledged = self._deliveries.pop(mid, None)
        if acknowledged is not None:
            acknowledged()

    def _fail(self, why: str) -> None:
        self._failure = why
        self._verdict.set()


def _drop(payload: bytes) -> None:
    """Ignore a payload: the link is closed."""
