"""Short MQTT sessions, and a test of a broker's shared subscriptions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_edge.link.wire import shared_subscription

#: Keep-alive interval of these sessions, which a broker needs to detect a client that died.
_KEEPALIVE_SECONDS = 10
#: Longest wait for a broker's grant of a subscription, and for a message that was published.
TIMEOUT_SECONDS = 10.0
#: Longest wait for a connection that one of many attempts may get.
_CONNECT_SECONDS = 1.0
#: Longest wait for a shared message after the plain message that was published later.
_GRACE_SECONDS = 0.5


def broker_url(scheme: str, host: str, port: int) -> str:
    """Make the URL of a broker; an IPv6 address is in brackets."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def open_client(client: paho.Client, endpoint: Endpoint) -> None:
    """Connect a client; the caller runs its network loop. Raise LinkError if this fails."""
    try:
        client.connect(endpoint.host, endpoint.port, keepalive=_KEEPALIVE_SECONDS)
    except OSError as error:
        raise unreachable_error(endpoint, error.strerror or str(error)) from error


def close_client(client: paho.Client) -> None:
    """Disconnect a client, end its network thread, and close its sockets."""
    client.disconnect()
    client.loop_stop()
    # reinitialise() closes the socket pair that wakes the thread
    client.reinitialise()


@contextmanager
def subscribed(
    endpoint: Endpoint,
    *topics: str,
    on_message: Callable[[paho.MQTTMessage], None],
    timeout_seconds: float,
) -> Iterator[tuple[paho.Client, bool | None]]:
    """Connect and subscribe; :func:`run_until` then calls `on_message` with each message.

    Yields the client, and whether the broker granted all `topics`, or None if the broker did not
    answer in time. Raises LinkError if the broker cannot be reached or refuses the client.
    """
    grants: list[bool] = []
    refusals: list[str] = []

    def on_connect(
        client: paho.Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            refusals.append(str(reason))
        else:
            client.subscribe([(topic, 1) for topic in topics])

    def on_subscribe(
        _client: Any, _userdata: Any, _packet_id: int, reasons: Any, _properties: Any
    ) -> None:
        grants.append(not any(reason.is_failure for reason in reasons))

    client = make_client(endpoint, f"gw-{secrets.token_hex(8)}", max_inflight=8)
    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_message = lambda _client, _userdata, message: on_message(message)
    open_client(client, endpoint)
    try:
        run_until(client, lambda: bool(grants or refusals), timeout_seconds)
        if refusals:
            raise refusal_error(endpoint, refusals[0])
        yield client, grants[0] if grants else None
    finally:
        close_client(client)


def connect_reason(endpoint: Endpoint) -> ReasonCode | None:
    """Connect and disconnect; return the broker's reason code, or None if it did not answer."""
    reasons: list[ReasonCode] = []
    client = make_client(endpoint, "", max_inflight=1)
    client.connect_timeout = _CONNECT_SECONDS
    client.on_connect = lambda _client, _userdata, _flags, reason, _properties: reasons.append(
        reason
    )
    try:
        client.connect(endpoint.host, endpoint.port, keepalive=_KEEPALIVE_SECONDS)
        run_until(client, lambda: bool(reasons), _CONNECT_SECONDS)
    except OSError:
        return None
    finally:
        close_client(client)
    return reasons[0] if reasons else None


def run_until(client: paho.Client, is_done: Callable[[], bool], seconds: float) -> bool:
    """Run a client's network loop until `is_done()`, for at most `seconds`; return `is_done()`."""
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        if client.loop(0.05) != paho.MQTT_ERR_SUCCESS:
            break
    return is_done()


def unreachable_error(endpoint: Endpoint, reason: str) -> LinkError:
    """Make the error for a broker that cannot be reached."""
    remedy = "start one (gatewise broker) or correct the URL"
    if "CERTIFICATE" in reason:
        remedy = (
            "give the ca.crt of this broker (--ca-file), renew its certificate, or set the clock"
        )
    return LinkError(endpoint.url, f"broker {endpoint.url} cannot be reached ({reason}): {remedy}")


def refusal_error(endpoint: Endpoint, reason: str) -> LinkError:
    """Make the error for a broker that refuses this client."""
    return LinkError(endpoint.url, f"broker {endpoint.url} refuses this client: {reason}")


def shared_subscriptions_work(broker: str | Endpoint, *, timeout: float = 3.0) -> bool | None:
    """Test by a round trip whether `broker` delivers messages of shared subscriptions.

    A SUBACK does not prove it, because the embedded broker grants ``$share/...`` but never delivers
    messages. The test publishes one message on a topic with a shared subscription, and then one on
    a topic with a plain subscription. It waits `timeout` seconds for the plain message, and half a
    second more for the shared one. Returns None if the plain message does not arrive, because this
    client may lack the right to publish it. Raises LinkError if the broker cannot be reached or
    refuses the client.
    """
    # these topics look like a device's topics, so that an access list can allow them
    base_topic = f"gw/v1/probe-{secrets.token_hex(8)}"
    plain_topic = f"{base_topic}/plain"
    shared_topic = f"{base_topic}/shared"
    shared_filter = shared_subscription(secrets.token_hex(8), shared_topic)
    received_topics: set[str] = set()
    endpoint = broker if isinstance(broker, Endpoint) else Endpoint(broker)

    def add_topic(message: paho.MQTTMessage) -> None:
        received_topics.add(message.topic)

    session = subscribed(
        endpoint, plain_topic, shared_filter, on_message=add_topic, timeout_seconds=timeout
    )
    with session as (client, is_granted):
        if is_granted is None:
            return None
        client.publish(shared_topic, b"", qos=1)
        client.publish(plain_topic, b"", qos=1)
        if not run_until(client, lambda: plain_topic in received_topics, timeout):
            return None
        # the shared message was published first, and arrives at about the same time or never
        return run_until(client, lambda: shared_topic in received_topics, _GRACE_SECONDS)


def publish_retained(endpoint: Endpoint, topic: str, payload: bytes) -> None:
    """Publish a retained message, and wait until the broker delivers it to this client.

    The broker's PUBACK does not prove that it accepted the message, because MQTT 3.1.1 has no reply
    for a client that may not publish. Raises LinkError if the broker cannot be reached or does not
    deliver the message.
    """
    echoes: set[bytes] = set()

    def add_echo(message: paho.MQTTMessage) -> None:
        if not message.retain:
            echoes.add(bytes(message.payload))

    session = subscribed(endpoint, topic, on_message=add_echo, timeout_seconds=TIMEOUT_SECONDS)
    with session as (client, is_granted):
        if is_granted is None:
            raise refusal_error(endpoint, "it did not grant the subscription in time")
        client.publish(topic, payload, qos=1, retain=True)
        if not run_until(client, lambda: payload in echoes, TIMEOUT_SECONDS):
            raise LinkError(
                endpoint.url,
                f"broker {endpoint.url} does not deliver messages on {topic}: check that this user "
                "may write there",
            )
