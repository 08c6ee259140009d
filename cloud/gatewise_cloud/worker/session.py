"""MQTT sessions of a worker, which renew their subscriptions after each reconnect."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from gatewise_cloud.broker.mqtt_client import refusal_error, unreachable_error
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.link import wire
from gatewise_edge.link.broker_connection import BrokerConnection
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.message_forms import CBOR, MessageForm

_LOG = logging.getLogger("gatewise_cloud")
#: Longest wait for the connection and the subscription when a worker starts.
_CONNECT_SECONDS = 5.0
#: Longest wait for acknowledgements when a worker ends.
_ACK_SECONDS = 2.0
#: Time between two looks at the number of unacknowledged messages.
_POLL_SECONDS = 0.005

#: Function that handles a message: its topic, its payload, and whether the broker retained it.
#:
#: It is called on the network thread. Its exceptions are logged.
Receive = Callable[[str, bytes, bool], None]


class _Session:
    """Clean MQTT session with subscriptions at QoS 1; thread-safe.

    The session is clean because a broker would send requests of a shared subscription to the
    persistent session of a worker that has died.

    Up to `max_unacked` published messages may be unacknowledged. `n_connects` is the number of
    connections so far.
    """

    def __init__(self, endpoint: Endpoint, max_unacked: int) -> None:
        self._endpoint = endpoint
        self._receive: Receive = lambda topic, payload, is_retained: None
        self._filters: tuple[str, ...] = ()
        # this condition guards the fields below
        self._condition = threading.Condition()
        self._was_subscribed = False
        self._is_granted = False  # for the present connection
        self._refusal: str | None = None
        self._is_unreachable = False
        self.n_connects = 0
        self.broker = BrokerConnection(
            endpoint,
            f"gw-worker-{secrets.token_hex(6)}",
            max_unacked=max_unacked,
            on_connect=self._on_connect,
            on_subscribe=self._on_subscribe,
            on_message=self._on_message,
            on_disconnect=self._on_disconnect,
        )

    @property
    def is_subscribed(self) -> bool:
        """Whether the session is connected and the broker has granted its subscription."""
        return self._is_granted and self.broker.is_connected

    @property
    def is_alive(self) -> bool:
        """Whether the network thread is running; also true before the first connection."""
        return self.n_connects == 0 or self.broker.is_alive

    def open(self, subscription: str, receive: Receive, more_filters: Sequence[str] = ()) -> None:
        """Connect and subscribe, and wait until the broker grants the `subscription`.

        The log warns if the broker refuses a subscription to JSON requests or to `more_filters`.
        `receive` handles each message. Raises LinkError if the broker cannot be reached, or refuses
        the client or the `subscription`.
        """
        self._filters = subscription, f"{subscription}/json", *more_filters
        self._receive = receive
        self.broker.start()
        with self._condition:
            self._condition.wait_for(
                lambda: self._was_subscribed or self._refusal, _CONNECT_SECONDS
            )
            if self._was_subscribed:
                return
            refusal = self._refusal or f"no answer within {_CONNECT_SECONDS:g} s"
        self.close()
        raise (
            unreachable_error(self._endpoint, refusal)
            if self._is_unreachable
            else refusal_error(self._endpoint, refusal)
        )

    def unsubscribe(self) -> None:
        """Unsubscribe, and wait until the broker confirms it."""
        if self.broker.is_connected:
            confirmation = threading.Event()
            self.broker.unsubscribe(self._filters, confirmation.set)
            confirmation.wait(_ACK_SECONDS)
        self._is_granted = False

    def close(self) -> None:
        """Wait until the broker has acknowledged all messages, then disconnect."""
        deadline = time.monotonic() + _ACK_SECONDS
        while self.broker.is_connected and self.broker.n_unacked and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.broker.close()

    # -- events, on the network thread -----------------------------------------------------

    def _on_connect(self) -> None:
        with self._condition:
            self._is_granted = False
            self.n_connects += 1
        # subscribe at each connection, because a clean session ends with its connection
        self.broker.subscribe(self._filters)

    def _on_subscribe(self, _packet_id: int, reasons: Sequence[ReasonCode]) -> None:
        with self._condition:
            if reasons[0].is_failure:
                self._refusal = (
                    f"the subscription {self._filters[0]} is not allowed: check that the name of "
                    "the pool is the one in the broker's file `clients/pool` (--pool-file)"
                )
            else:
                if self.n_connects > 1:
                    _LOG.info("connected to %s again", self._endpoint.url)
                self._was_subscribed = True
                self._is_granted = True
                for topic_filter, reason in zip(self._filters[1:], reasons[1:], strict=False):
                    if reason.is_failure:
                        _LOG.warning("warning: the subscription %s is not allowed", topic_filter)
            self._condition.notify_all()

    def _on_disconnect(self, reason: str) -> None:
        with self._condition:
            had_subscription = self._is_granted
            self._is_granted = False
            if self.n_connects == 0:
                self._is_unreachable = not self.broker.has_reached_broker
                self._refusal = reason
                self._condition.notify_all()
        if had_subscription:
            _LOG.info("the connection to %s is lost: %s", self._endpoint.url, reason)

    def _on_message(self, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            _LOG.warning("warning: ignored a message on a topic that is not UTF-8")
            return
        try:
            self._receive(topic, bytes(message.payload), message.retain)
        except Exception:
            _LOG.exception("a message on %s could not be handled", topic[:100])


class WorkerSessions:
    """The `n_sessions` MQTT sessions of a worker; thread-safe.

    Several sessions help with a broker that limits the messages of each connection. The shared
    subscription divides requests among the sessions, and the sessions take turns to send responses.
    `counters` count errors, dead letters and messages that could not be sent.
    """

    def __init__(
        self, endpoint: Endpoint, counters: Counters, *, n_sessions: int, max_unacked: int
    ) -> None:
        self._sessions = [_Session(endpoint, max_unacked) for _ in range(n_sessions)]
        self._turns = itertools.cycle(self._sessions)
        self._counters = counters

    @property
    def n_connects(self) -> int:
        """Number of connections so far."""
        return sum(session.n_connects for session in self._sessions)

    @property
    def n_oversized(self) -> int:
        """Number of connections that ended because a message was too large."""
        return sum(session.broker.n_oversized for session in self._sessions)

    @property
    def is_connected(self) -> bool:
        """Whether at least one session is connected now."""
        return any(session.broker.is_connected for session in self._sessions)

    @property
    def is_subscribed(self) -> bool:
        """Whether at least one session is connected and subscribed."""
        return any(session.is_subscribed for session in self._sessions)

    @property
    def is_alive(self) -> bool:
        """Whether all network threads are running."""
        return all(session.is_alive for session in self._sessions)

    @property
    def has_unread(self) -> bool:
        """Whether messages have arrived that have not been handled yet."""
        return any(session.broker.has_unread for session in self._sessions)

    def open(self, subscription: str, receive: Receive, more_filters: Sequence[str] = ()) -> None:
        """Connect and subscribe each session; only the first subscribes to `more_filters`.

        Without a shared subscription each session would receive every request, so that only the
        first connects.
        """
        is_shared = subscription.startswith("$share/")
        for session in self._sessions if is_shared else self._sessions[:1]:
            session.open(
                subscription, receive, more_filters if session is self._sessions[0] else ()
            )

    def respond(self, device: str, response: wire.Response, form: MessageForm = CBOR) -> None:
        """Send a response to a device."""
        if response.error is not None:
            self._counters.add("errors", label=response.error)
        self.send(device, form.encode_response(response), form)

    def send(self, device: str, payload: bytes, form: MessageForm = CBOR) -> None:
        """Send an encoded response to a device."""
        self._publish(form.response_topic(device), payload)

    def dead_letter(self, reason: str, payload: bytes) -> None:
        """Publish a message that cannot be answered on the dead-letter topic."""
        self._counters.add("dead", label=reason)
        self._publish(wire.dead_letter_topic(reason), payload[: wire.MAX_PAYLOAD])

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1 without waiting; may be called on any thread.

        The message goes to the next session that is connected. Without a connection it is dropped
        and counted, because it would be useless later. A message beyond the limit of unacknowledged
        messages is dropped as well.
        """
        brokers = [next(self._turns).broker for _ in self._sessions]
        broker = next((broker for broker in brokers if broker.is_connected), brokers[0])
        if not broker.publish(topic, payload):
            self._counters.add("unsent")

    def unsubscribe(self) -> None:
        """Unsubscribe all sessions."""
        for session in self._sessions:
            session.unsubscribe()

    def close(self) -> None:
        """Disconnect all sessions."""
        for session in self._sessions:
            session.close()
