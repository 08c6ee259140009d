"""A worker's end of its link: subscriptions that survive reconnects, responses, dead letters."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho

from gatewise_cloud.broker.mqtt_client import close_client, open_client, refused
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.link import wire
from gatewise_edge.link.broker_url import why_lost
from gatewise_edge.link.message_forms import CBOR, MessageForm
from gatewise_edge.link.mqtt import Endpoint, make_client

_LOG = logging.getLogger("gatewise_cloud")
_CONNECT_SECONDS = 5.0
_ACK_SECONDS = 2.0
_POLL_SECONDS = 0.005

Receive = Callable[[str, bytes, bool], None]
"""Called with topic, payload and whether the broker had retained it, on paho's thread.

An exception from it is logged.
"""


class MqttSession:
    """A clean MQTT session with subscriptions at QoS 1. Thread-safe.

    Clean, since a persistent one would keep a dead worker in the rotation of a shared
    subscription, and a third of all traffic waiting for it.

    At most `max_unacked` published messages are unacknowledged. `worker` is the name, drawn at
    random, to which devices send the parts of large requests. `connects` counts connections so far;
    what is sent is counted, too.
    """

    def __init__(
        self, endpoint: Endpoint, client_id: str, counters: Counters, *, max_unacked: int
    ) -> None:
        self.worker = secrets.token_hex(8)
        self._endpoint = endpoint
        self._counters = counters
        self._receive: Receive = lambda topic, payload, retained: None
        self._filters: tuple[str, ...] = ()
        self._reader: threading.Thread | None = None  # paho's
        # Guards what is below. Never held around a call of paho's, which takes locks of its
        # own and calls back while it holds some.
        self._changed = threading.Condition()
        self._subscribed = False
        self._denied: frozenset[str] = frozenset()  # filters that the broker did not grant
        self._granted = False  # for the connection that stands
        self._unsubscribed = False
        self._refusal: str | None = None
        self.connects = 0
        self._client = make_client(endpoint, client_id, max_inflight=max_unacked)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message

    @property
    def connected(self) -> bool:
        """Whether the connection stands now."""
        return self._client.is_connected()

    @property
    def subscribed(self) -> bool:
        """Whether the connection stands and the broker has granted the subscription on it."""
        return self._granted and self._client.is_connected()

    @property
    def alive(self) -> bool:
        """Whether the network thread runs, once the session is open."""
        return self._reader is None or self._reader.is_alive()

    @property
    def takes_parts(self) -> bool:
        """Whether the broker lets parts of requests through to this worker."""
        return wire.parts_of(self.worker) not in self._denied

    @property
    def unread(self) -> bool:
        """Whether more has come in than was handled so far."""
        return self._client.unread

    def open(self, subscription: str, receive: Receive) -> None:
        """Connect and subscribe; returns once the broker granted the `subscription`.

        What it does not grant of JSON requests and of parts is logged.
        """
        self._filters = subscription, f"{subscription}/json", wire.parts_of(self.worker)
        self._receive = receive
        open_client(self._client, self._endpoint)
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._subscribed or self._refusal, _CONNECT_SECONDS)
            if self._subscribed:
                return
            problem = self._refusal or f"no answer within {_CONNECT_SECONDS:g} s"
        self.close()
        raise refused(self._endpoint, problem)

    def respond(self, device: str, response: wire.Response, form: MessageForm = CBOR) -> None:
        """Send a response to a device."""
        if response.error is not None:
            self._counters.add("errors", label=response.error)
        self.send(device, form.encode_response(response), form)

    def send(self, device: str, payload: bytes, form: MessageForm = CBOR) -> None:
        """Send an encoded response to a device."""
        self._publish(form.response_topic(device), payload)

    def dead_letter(self, reason: str, payload: bytes) -> None:
        """Publish a message that gets no response on the dead-letter topic."""
        self._counters.add("dead", label=reason)
        self._publish(wire.dead_topic(reason), payload[: wire.MAX_PAYLOAD])

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1, without waiting, on any thread.

        Dropped, and counted, when there is no connection (what is sent later is stale) or when too
        much is unacknowledged.
        """
        if self._client.send(topic, payload) is None:
            self._counters.add("unsent")

    def unsubscribe(self) -> None:
        """Unsubscribe, and wait until the broker has confirmed it."""
        if self._client.is_connected():
            self._client.unsubscribe(list(self._filters))
            with self._changed:
                self._changed.wait_for(lambda: self._unsubscribed, _ACK_SECONDS)

    def close(self) -> None:
        """Wait until the broker has what was published, then disconnect."""
        until = time.monotonic() + _ACK_SECONDS
        while self.connected and self._client.unacked and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        close_client(self._client)

    # -- callbacks, on paho's thread -------------------------------------------------------

    def _on_connect(
        self, client: paho.Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self._reader = threading.current_thread()
        with self._changed:
            self._granted = False
            if reason.is_failure:
                self._refusal = str(reason)
                self._changed.notify_all()
                return
            self.connects += 1
        # Here and not once: a clean session forgets its subscriptions with the connection.
        client.subscribe([(each, 1) for each in self._filters])

    def _on_subscribe(
        self, _client: paho.Client, _userdata: Any, _mid: int, reasons: Any, _properties: Any
    ) -> None:
        with self._changed:
            if reasons[0].is_failure:
                self._refusal = (
                    f"the subscription {self._filters[0]} is not allowed: is the pool's name that "
                    "of the broker's `clients/pool` (--pool-file)?"
                )
            else:
                if self.connects > 1:
                    _LOG.info("connected to %s again", self._endpoint.url)
                self._subscribed = self._granted = True
                pairs = zip(self._filters, reasons, strict=False)
                self._denied = frozenset(each for each, code in pairs if code.is_failure)
                for each in self._denied:
                    _LOG.warning("warning: the subscription %s is not allowed", each)
            self._changed.notify_all()

    def _on_unsubscribe(self, *_: Any) -> None:
        with self._changed:
            self._unsubscribed = True
            self._granted = False
            self._changed.notify_all()

    def _on_disconnect(
        self, _client: paho.Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        with self._changed:
            had, self._granted = self._granted, False
        if had and reason.is_failure:
            _LOG.info("the connection to %s is lost: %s", self._endpoint.url, why_lost(reason))

    def _on_message(self, _client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        # An escaping exception would end the connection.
        try:
            topic = message.topic
        except UnicodeDecodeError:
            _LOG.warning("warning: a message on a topic that is not UTF-8 is ignored")
            return
        try:
            self._receive(topic, bytes(message.payload), message.retain)
        except Exception:
            _LOG.exception("a message on %s could not be handled", topic[:100])
