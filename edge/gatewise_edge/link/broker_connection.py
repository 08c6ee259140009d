"""A client's connection to a broker, its network thread, and its reconnects.

paho-mqtt implements the protocol, but its network thread has two faults. It writes the messages of
other threads only when it runs again, and it ends at a packet that it cannot parse. This module
therefore runs its own loop, with the methods that paho offers to external event loops. Every thread
writes its messages at once, an invalid packet ends only the connection, and no message of an old
connection is sent on a new one.
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

from gatewise_edge.link.endpoint import Endpoint, disconnect_reason, make_client

_LOG = logging.getLogger(__name__)

#: Silence in seconds after which paho sends a PINGREQ. The broker publishes the last will after 1.5
#: times this time (MQTT 3.1.1, section 3.1.2.10).
_KEEPALIVE_SECONDS: Final = 10
#: Longest time in seconds between two calls of paho's keepalive, which counts in seconds.
_TICK_SECONDS: Final = 1.0
#: Mean pause in seconds before the first attempt to reconnect. Each further attempt doubles it, up
#: to the maximum. The link then works soon after a short fault, and within 90 s after a long one.
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 60.0


class BrokerConnection:
    """A connection with a clean session, which its own thread reconnects. Thread-safe.

    The network thread calls all callbacks, one at a time and without a lock held. Their errors are
    logged.

    Parameters
    ----------
    endpoint : Endpoint
        The broker.
    client_id : str
        The client's id, unique at the broker.
    max_unacked : int
        Largest number of unacknowledged messages of QoS 1; further ones are refused.
    on_connect : callable
        Called when the broker has accepted a connection; it should subscribe to the topics.
    on_subscribe : callable
        Called with the id and the reason codes of a SUBACK.
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
        self._handle_disconnect = on_disconnect
        #: Events that paho reported and that no callback has handled yet. paho calls the functions
        #: below with its locks held, so they only add an event.
        self._events: deque[Callable[[], None]] = deque()
        client = make_client(endpoint, client_id, max_inflight=max_unacked)
        if last_will is not None:
            client.will_set(*last_will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = lambda _client, _userdata, packet_id, reasons, _: self._events.append(
            partial(on_subscribe, packet_id, reasons)
        )
        client.on_publish = client.on_unsubscribe = lambda _client, _userdata, packet_id, *_: (
            self._events.append(partial(self._acknowledge, packet_id))
        )
        client.on_message = lambda _client, _userdata, message: self._events.append(
            partial(on_message, message)
        )
        client.on_disconnect = self._on_disconnect
        # If this callback is set, paho queues messages and lets this class write them.
        client.on_socket_register_write = lambda *_: None
        self._client = client
        #: Held during writes and during reads of TLS, because an OpenSSL connection may be used by
        #: one thread at a time only.
        self._write_lock = threading.RLock()
        self._read_lock: Any = self._write_lock if endpoint.uses_tls else contextlib.nullcontext()
        #: Callbacks of unacknowledged messages and UNSUBSCRIBEs, by packet id.
        self._pending_acks: dict[int, Callable[[], None] | None] = {}
        #: Reason why the connection ended; empty while it is unknown.
        self._end_reason = ""
        #: Whether the last attempt to connect reached a broker.
        self.has_reached_broker = False
        #: Connections that ended because a packet was too large.
        self.n_oversized = 0
        self._is_closing = threading.Event()
        self._wake_sender: socket.socket | None = None
        self._thread = threading.Thread(target=self._run_loop, name="gatewise-mqtt", daemon=True)

    @property
    def is_connected(self) -> bool:
        """Whether the broker has accepted the connection, and it has not ended."""
        return self._client.is_connected()

    @property
    def is_alive(self) -> bool:
        """Whether the network thread is running."""
        return self._thread.is_alive()

    @property
    def n_unacked(self) -> int:
        """Number of published messages that the broker has not acknowledged."""
        return len(self._pending_acks)

    @property
    def has_unread(self) -> bool:
        """Whether there are events or bytes to handle; only for callbacks."""
        connection: Any = self._client.socket()
        if self._events or connection is None:
            return bool(self._events)
        if self._endpoint.uses_tls and connection.pending() > 0:
            return True
        # Poll, because select() refuses descriptors from 1,024 on.
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        return bool(poller.poll(0))

    def start(self) -> None:
        """Begin to connect, on the network thread."""
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> int | None:
        """Send one SUBSCRIBE at QoS 1; return its packet id, or None if it was not sent."""
        with self._write_lock:
            _, packet_id = self._client.subscribe([(topic, 1) for topic in topics])
            self._write_packets()
        return packet_id

    def unsubscribe(self, topics: Sequence[str], on_ack: Callable[[], None]) -> None:
        """Send one UNSUBSCRIBE; `on_ack` is called once the broker has acknowledged it."""
        with self._write_lock:
            _, packet_id = self._client.unsubscribe(list(topics))
            if packet_id is not None:
                self._pending_acks[packet_id] = on_ack
            self._write_packets()

    def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        on_ack: Callable[[], None] | None = None,
    ) -> bool:
        """Write a message before returning; return False if the connection refuses it.

        `on_ack` is called once the broker has acknowledged the message. It is not called if the
        connection ends before.
        """
        with self._write_lock:
            if not self._client.is_connected():
                return False
            message = self._client.publish(topic, payload, qos=qos, retain=retain)
            if message.rc != paho.MQTT_ERR_SUCCESS:
                return False
            if qos:
                self._pending_acks[message.mid] = on_ack
            self._write_packets()
        return True

    def close(self) -> None:
        """Disconnect and end the network thread. May be called twice."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        with self._write_lock:
            self._client.disconnect()
            self._write_packets()
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the network thread ----------------------------------------------------------------

    def _run_loop(self) -> None:
        wake_receiver, wake_sender = socket.socketpair()
        wake_receiver.setblocking(False)
        with wake_receiver, wake_sender:
            self._wake_sender = wake_sender
            self._keep_connected(wake_receiver)
            self._wake_sender = None

    def _keep_connected(self, wake_receiver: socket.socket) -> None:
        """Connect and reconnect until :meth:`close`, with growing pauses."""
        pause_s = _FIRST_PAUSE_SECONDS
        while not self._is_closing.is_set():
            self._end_reason = ""
            self.has_reached_broker = self._connect()
            if self.has_reached_broker and self._serve(wake_receiver):
                pause_s = _FIRST_PAUSE_SECONDS
            self._pending_acks.clear()
            self._dispatch()
            if self._is_closing.is_set():
                return
            self._run_handler(partial(self._handle_disconnect, self._end_reason))
            # Randomise the pause, because the devices of a fleet must not reconnect all at once.
            self._is_closing.wait(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2.0 * pause_s, _MAX_PAUSE_SECONDS)

    def _connect(self) -> bool:
        """Open the socket and send CONNECT; return False if the broker cannot be reached."""
        self._endpoint.reload_certificate()
        try:
            with self._write_lock:
                self._client.connect(self._endpoint.host, self._endpoint.port, _KEEPALIVE_SECONDS)
                self._write_packets()
        except (OSError, ValueError) as error:
            self._end_reason = getattr(error, "strerror", None) or str(error) or "no connection"
            return False
        return True

    def _serve(self, wake_receiver: socket.socket) -> bool:
        """Read and write until the connection ends; return whether the broker accepted it."""
        is_accepted = False
        poller = select.poll()
        poller.register(wake_receiver, select.POLLIN)
        connection: Any = self._client.socket()
        if connection is None:
            return False
        descriptor = connection.fileno()
        next_tick_at = time.monotonic() + _TICK_SECONDS
        while self._client.socket() == connection:
            events = select.POLLIN | (select.POLLOUT if self._client.want_write() else 0)
            poller.register(descriptor, events)
            # TLS may have decrypted bytes that poll() does not see.
            has_decrypted = self._endpoint.uses_tls and connection.pending() > 0
            events_by_descriptor = dict(poller.poll(0 if has_decrypted else 1000.0 * _TICK_SECONDS))
            if wake_receiver.fileno() in events_by_descriptor:
                wake_receiver.recv(4096)  # a byte for each call of _wake so far
            if (descriptor in events_by_descriptor or has_decrypted) and not self._read_packets():
                break
            is_accepted = is_accepted or self._client.is_connected()
            self._dispatch()
            if time.monotonic() >= next_tick_at:
                next_tick_at = time.monotonic() + _TICK_SECONDS
                with self._write_lock:
                    self._client.loop_misc()
            if self._client.want_write():
                with self._write_lock:
                    self._client.loop_write()
        return is_accepted

    def _read_packets(self) -> bool:
        """Handle received bytes; if they are not MQTT, end the connection and return False."""
        connection: Any = self._client.socket()
        try:
            with self._read_lock:
                self._client.loop_read()
            if connection is not None and connection.oversized:
                self.n_oversized += 1
                self._end_reason = (
                    f"the broker sent a packet of {connection.oversized} bytes or more"
                )
                _LOG.warning("warning: %s; reconnecting", self._end_reason)
        except Exception:
            _LOG.exception("cannot read a packet from the broker; reconnecting")
            self._end_reason = self._end_reason or "the broker sent a packet that cannot be read"
            with self._write_lock:
                self._client.disconnect()
                self._client.loop_write()
            return False
        return True

    def _write_packets(self) -> None:
        """Write queued packets; if the socket is full, the network thread writes the rest."""
        self._client.loop_write()
        if self._client.want_write() or self._client.socket() is None:
            self._wake()

    def _wake(self) -> None:
        wake_sender = self._wake_sender
        if wake_sender is not None:
            with contextlib.suppress(OSError):  # the thread may have just ended
                wake_sender.send(b"\0")

    def _dispatch(self) -> None:
        while self._events:
            self._run_handler(self._events.popleft())

    def _run_handler(self, handler: Callable[[], None]) -> None:
        try:
            handler()
        except Exception:
            _LOG.exception("an event of the connection could not be handled")

    # -- paho's callbacks -------------------------------------------------------------------

    def _on_connect(
        self,
        client: paho.Client,
        _userdata: object,
        _flags: object,
        reason: ReasonCode,
        _properties: object,
    ) -> None:
        # Drop the stale packets of the last connection, which paho would send again.
        client.drop_out_messages()
        if reason.is_failure:
            self._end_reason = str(reason)
        else:
            self._events.append(self._handle_connect)

    def _on_disconnect(
        self, _client: object, _userdata: object, _flags: object, reason: object, _: object
    ) -> None:
        # A refused connection already has its reason.
        self._end_reason = self._end_reason or disconnect_reason(reason)

    def _acknowledge(self, packet_id: int) -> None:
        with self._write_lock:  # `publish` holds it until it has stored the callback
            on_ack = self._pending_acks.pop(packet_id, None)
        if on_ack is not None:
            on_ack()
