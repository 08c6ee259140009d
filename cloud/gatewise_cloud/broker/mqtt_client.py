"""Short MQTT sessions: connect, disconnect, and probe a broker's subscriptions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import Endpoint, make_client
from gatewise_edge.link.wire import shared

_KEEPALIVE_SECONDS = 10
_GRACE_SECONDS = 0.5


def open_client(client: paho.Client, endpoint: Endpoint) -> None:
    """Connect a client; the caller starts its network thread."""
    try:
        client.connect(endpoint.host, endpoint.port, keepalive=_KEEPALIVE_SECONDS)
    except OSError as error:
        raise unreachable(endpoint, error.strerror or str(error)) from error


def close_client(client: paho.Client) -> None:
    """Disconnect, end the network thread, and close what paho opened."""
    client.disconnect()
    client.loop_stop()
    # closes the socket pair that wakes the thread
    client.reinitialise()


@contextmanager
def subscribed(
    endpoint: Endpoint,
    *topics: str,
    take: Callable[[paho.MQTTMessage], None],
    timeout: float,
) -> Iterator[tuple[paho.Client, bool | None]]:
    """Connect and subscribe; :func:`run_until` then calls `take` with each message.

    Yields the client, and whether all `topics` were granted: None if the broker did not answer
    within `timeout` seconds. Raises LinkError if the broker cannot be reached, or refuses the
    client.
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

    def on_subscribe(_client: Any, _userdata: Any, _mid: int, reasons: Any, _p: Any) -> None:
        grants.append(not any(reason.is_failure for reason in reasons))

    client = make_client(endpoint, f"gw-{secrets.token_hex(8)}", max_inflight=8)
    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_message = lambda _client, _userdata, message: take(message)
    open_client(client, endpoint)
    try:
        run_until(client, lambda: bool(grants or refusals), timeout)
        if refusals:
            raise refused(endpoint, refusals[0])
        yield client, grants[0] if grants else None
    finally:
        close_client(client)


def connect_reason(endpoint: Endpoint, timeout: float) -> ReasonCode | None:
    """Connect and disconnect; return the broker's reason code, or None without one in time."""
    reasons: list[ReasonCode] = []
    client = make_client(endpoint, "", max_inflight=1)
    client.connect_timeout = timeout
    client.on_connect = lambda _c, _u, _f, reason, _p: reasons.append(reason)
    try:
        client.connect(endpoint.host, endpoint.port, keepalive=_KEEPALIVE_SECONDS)
        run_until(client, lambda: bool(reasons), timeout)
    except OSError:
        return None
    finally:
        close_client(client)
    return reasons[0] if reasons else None


def run_until(client: paho.Client, done: Callable[[], bool], seconds: float) -> bool:
    """Run a client's network loop here until `done()`, or for `seconds`; return ``done()``."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        if client.loop(0.05) != paho.MQTT_ERR_SUCCESS:
            break
    return done()


def unreachable(endpoint: Endpoint, why: str) -> LinkError:
    """Make the error of a broker that cannot be reached."""
    return LinkError(
        endpoint.url,
        f"broker {endpoint.url} cannot be reached ({why}): start one (gatewise broker) or correct "
        "the URL",
    )


def refused(endpoint: Endpoint, why: str) -> LinkError:
    """Make the error of a broker that refuses this client."""
    return LinkError(endpoint.url, f"broker {endpoint.url} refuses this client: {why}")


def shared_subscriptions_work(broker: str | Endpoint, *, timeout: float = 3.0) -> bool | None:
    """Test by a round trip whether `broker` serves shared subscriptions.

    A SUBACK is no proof, because the embedded broker grants ``$share/...`` and never delivers. This
    publishes one message to a topic with a plain subscription, and one to a topic with a shared
    one. It waits `timeout` seconds for the first, and half a second more for the second. Returns
    None if the first did not arrive, because this client may not write or read there. Raises
    LinkError if the broker cannot be reached, or refuses the client.
    """
    # in the form of a device's topics, so that an access list can name them
    base = f"gw/v1/probe-{secrets.token_hex(8)}"
    plain = f"{base}/plain"
    pooled = f"{base}/shared"
    pool = shared(secrets.token_hex(8), pooled)
    arrived: set[str] = set()
    endpoint = broker if isinstance(broker, Endpoint) else Endpoint(broker)

    def take(message: paho.MQTTMessage) -> None:
        arrived.add(message.topic)

    with subscribed(endpoint, plain, pool, take=take, timeout=timeout) as (client, granted):
        if granted is None:
            return None
        client.publish(pooled, b"", qos=1)
        client.publish(plain, b"", qos=1)
        if not run_until(client, lambda: plain in arrived, timeout):
            return None
        # the shared one was published first, and arrives at about the same time or never
        return run_until(client, lambda: pooled in arrived, _GRACE_SECONDS)


def publish_retained(
    endpoint: Endpoint, topic: str, payload: bytes, *, timeout: float = 10.0
) -> None:
    """Publish a retained message, and wait until it arrives here.

    The broker's PUBACK is no proof: MQTT 3.1.1 does not tell a client that it may not publish.
    Raises LinkError if the broker cannot be reached, or does not deliver the message.
    """
    echoes: set[bytes] = set()

    def take(message: paho.MQTTMessage) -> None:
        if not message.retain:
            echoes.add(bytes(message.payload))

    with subscribed(endpoint, topic, take=take, timeout=timeout) as (client, granted):
        if granted is None:
            raise refused(endpoint, "it did not grant the subscription in time")
        client.publish(topic, payload, qos=1, retain=True)
        if not run_until(client, lambda: payload in echoes, timeout):
            raise LinkError(
                endpoint.url,
                f"broker {endpoint.url} does not deliver messages on {topic}: check that this user "
                "may write there",
            )
