"""A client's connection to a broker, made again whenever it is lost, and its network thread.

paho-mqtt speaks the protocol. Its own network thread would write the messages of other threads
later, after a change of threads, and would end at a packet that it cannot read. Therefore this
module has its own loop, on paho's calls for foreign event loops: every thread writes its messages
at once, an unreadable packet ends the connection, and no message of an old connection is sent on a
new one.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from gatewise_edge.link.broker_url import Endpoint, make_client, why_lost

_LOG = logging.getLogger(__name__)

_KEEPALIVE: Final = 10
#: Longest time between two looks at the keepalive, in seconds.
_TICK: Final = 1.0
#: Mean seconds before the first attempt to connect again; doubled each time, up to the longest.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class BrokerConnection:
    """A connection with a clean session, kept up by its own thread. Thread-safe.

    All callbacks are called on the network thread, one at a time and without a lock held; their
    errors are logged.

    Parameters
    ----------
    endpoint : Endpoint
        The broker.
    client_id : str
        The client's id, unique at the broker.
    max_unacked : int
        Largest number of messages of QoS 1 without acknowledgement; further ones are refused.
    on_connect : callable
        Called when the broker has accepted a connection: subscribe here.
    on_subscribe : callable
        Called with the id of a SUBSCRIBE and its reason codes.
    on_message : callable
        Called with each message.
    on_disconnect : callable
        Called with the reason why a connection was lost, refused or could not be made.
    last_will : tuple of str, optional
        Topic and text that the broker publishes, retained, when the connection is lost.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client_id: str,
        *,
        max_unacked: int,
        on_connect: Callable[[], None],
        on_subscribe: Callable[[int, Sequence[ReasonCode]], None],
        on_message: Callable[[paho.MQTTMessage], None],
        on_disconnect: Callable[[str], None],
        last_will: tuple[str, str] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._handle_connect = on_connect
        self._handle_subscribe = on_subscribe
        self._handle_message = on_message
        self._handle_disconnect = on_disconnect
        client = make_client(endpoint, client_id, max_inflight=max_unacked)
        if last_will is not None:
            client.will_set(*last_will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        # With this callback paho queues messages and leaves the writing to this class.
        client.on_socket_register_write = lambda *_: None
        self._client = client
        #: Held for every write, and for reads of TLS: OpenSSL's connections take one thread.
        self._writing = threading.RLock()
        self._reading: Any = self._writing if endpoint.tls else contextlib.nullcontext()
        #: What to call when a message or an UNSUBSCRIBE is acknowledged, by its id.
        self._pending_acks: dict[int, Callable[[], None]] = {}
        self._events: deque[Callable[[], None]] = deque()
        self._reason = ""
        #: Whether the last attempt to connect reached a broker.
        self.reached = False
        #: Connections that ended because a packet was too large.
        self.n_oversized = 0
        self._closing = threading.Event()
        self._wake_sender: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="gatewise-mqtt", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the connection and it stands."""
        return self._client.is_connected()

    @property
    def alive(self) -> bool:
        """Whether the network thread runs."""
        return self._thread.is_alive()

    @property
    def n_unacked(self) -> int:
        """Messages published with :meth:`publish` that the broker has not acknowledged."""
        return len(self._pending_acks)

    @property
    def unread(self) -> bool:
        """Whether more has come in than was handled; on the network thread."""
        connection: Any = self._client.socket()
        if self._events or connection is None:
            return bool(self._events)
        if self._endpoint.tls and connection.pending() > 0:
            return True
        # select() refuses descriptors from 1,024 on.
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        return bool(poller.poll(0))

    def start(self) -> None:
        """Begin to connect, on the network thread."""
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> int | None:
        """Send one SUBSCRIBE at QoS 1 for some topics; return its id, None if it was not sent."""
        with self._writing:
            _, packet_id = self._client.subscribe([(topic, 1) for topic in topics])
            self._write()
        return packet_id

    def unsubscribe(self, topics: Sequence[str], confirmed: Callable[[], None]) -> None:
        """Send one UNSUBSCRIBE; `confirmed` is called once the broker has acknowledged it."""
        with self._writing:
            _, packet_id = self._client.unsubscribe(list(topics))
            if packet_id is not None:
                self._pending_acks[packet_id] = confirmed
            self._write()

    def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        acknowledged: Callable[[], None] | None = None,
    ) -> bool:
        """Publish on this connection or not at all (False), written before this returns.

        `acknowledged` is called once the broker has the message; never if the connection ends
        before.
        """
        with self._writing:
            if not self._client.is_connected():
                return False
            message = self._client.publish(topic, payload, qos=qos, retain=retain)
            if message.rc != paho.MQTT_ERR_SUCCESS:
                return False
            if qos:
                self._pending_acks[message.mid] = acknowledged or _nothing
            self._write()
        return True

    def close(self) -> None:
        """Disconnect and end the network thread. May be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._writing:
            self._client.disconnect()
            self._write()
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the network thread ----------------------------------------------------------------

    def _run(self) -> None:
        wake_receiver, wake_sender = socket.socketpair()
        wake_receiver.setblocking(False)
        with wake_receiver, wake_sender:
            self._wake_sender = wake_sender
            self._keep_connected(wake_receiver)
            self._wake_sender = None

    def _keep_connected(self, wake_receiver: socket.socket) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            self._reason = ""
            self.reached = self._connect()
            if self.reached and self._serve(wake_receiver):
                pause = _FIRST_PAUSE
            self._pending_acks.clear()
            self._dispatch()
            if self._closing.is_set():
                return
            self._call(partial(self._handle_disconnect, self._reason))
            # Drawn, so that a fleet does not come back in step.
            self._closing.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2.0 * pause, _LONGEST_PAUSE)

    def _connect(self) -> bool:
        """Open the socket and send CONNECT; False with a reason if the broker is out of reach."""
        self._endpoint.reload_certificate()
        try:
            with self._writing:
                self._client.connect(self._endpoint.host, self._endpoint.port, _KEEPALIVE)
                self._write()
        except (OSError, ValueError) as error:
            self._reason = getattr(error, "strerror", None) or str(error) or "no connection"
            return False
        return True

    def _serve(self, wake_receiver: socket.socket) -> bool:
        """Read and write until the connection ends; return whether the broker had accepted it."""
        accepted = False
        poller = select.poll()
        poller.register(wake_receiver, select.POLLIN)
        connection: Any = self._client.socket()
        if connection is None:
            return False
        descriptor = connection.fileno()
        next_tick = time.monotonic() + _TICK
        while self._client.socket() == connection:
            events = select.POLLIN | (select.POLLOUT if self._client.want_write() else 0)
            poller.register(descriptor, events)
            unread = self._endpoint.tls and connection.pending() > 0
            ready = dict(poller.poll(0 if unread else 1000.0 * _TICK))
            if wake_receiver.fileno() in ready:
                wake_receiver.recv(4096)
            if (descriptor in ready or unread) and not self._read():
                break
            accepted = accepted or self._client.is_connected()
            self._dispatch()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK
                with self._writing:
                    self._client.loop_misc()
            if self._client.want_write():
                with self._writing:
                    self._client.loop_write()
        return accepted

    def _read(self) -> bool:
        """Handle received bytes; False if they are not MQTT: the connection cannot go on."""
        connection: Any = self._client.socket()
        try:
            with self._reading:
                self._client.loop_read()
            if connection is not None and connection.oversized:
                self.n_oversized += 1
                self._reason = f"the broker sent a packet of {connection.oversized} bytes or more"
                _LOG.warning("warning: %s: connecting again", self._reason)
        except Exception:
            _LOG.exception("a packet from the broker cannot be read: connecting again")
            self._reason = self._reason or "the broker sent a packet that cannot be read"
            with self._writing:
                self._client.disconnect()
                self._client.loop_write()
            return False
        return True

    def _write(self) -> None:
        """Write queued packets; the network thread writes the rest where the socket is full."""
        self._client.loop_write()
        if self._client.want_write() or self._client.socket() is None:
            self._wake()

    def _wake(self) -> None:
        sender = self._wake_sender
        if sender is not None:
            with contextlib.suppress(OSError):  # of a thread that has ended meanwhile
                sender.send(b"\0")

    def _dispatch(self) -> None:
        while self._events:
            self._call(self._events.popleft())

    def _call(self, handle: Callable[[], None]) -> None:
        try:
            handle()
        except Exception:
            _LOG.exception("an event of the connection could not be handled")

    # -- paho's callbacks: they note an event; it is handled without a lock of paho's -------

    def _on_connect(
        self,
        client: paho.Client,
        _data: object,
        _flags: object,
        reason: ReasonCode,
        _properties: object,
    ) -> None:
        # paho would send the packets of the last connection again: by now they are stale.
        client.drop_out_messages()
        if reason.is_failure:
            self._reason = str(reason)
        else:
            self._events.append(self._handle_connect)

    def _on_subscribe(
        self,
        _client: object,
        _data: object,
        packet_id: int,
        reasons: Sequence[ReasonCode],
        _properties: object,
    ) -> None:
        self._events.append(partial(self._handle_subscribe, packet_id, reasons))

    def _on_unsubscribe(self, _client: object, _data: object, packet_id: int, *_: object) -> None:
        self._events.append(partial(self._acknowledge, packet_id))

    def _on_publish(self, _client: object, _data: object, packet_id: int, *_: object) -> None:
        self._events.append(partial(self._acknowledge, packet_id))

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self._events.append(partial(self._handle_message, message))

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, reason: object, _p: object
    ) -> None:
        # A connection that was refused has its reason already.
        self._reason = self._reason or why_lost(reason)

    def _acknowledge(self, packet_id: int) -> None:
        with self._writing:  # `publish` holds it until the id is entered
            acknowledged = self._pending_acks.pop(packet_id, None)
        if acknowledged is not None:
            acknowledged()


def _nothing() -> None:
    """Ignore an acknowledgement."""
