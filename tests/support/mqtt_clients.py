"""MQTT clients for tests: a recording client, a device, and a simulated worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import pytest
from numpy.typing import NDArray

from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_edge.link import wire
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_edge.link.messages import AuditMark

TIMEOUT_S = 30.0


@pytest.fixture
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture with short pauses before links and workers reconnect; imported by conftests."""
    monkeypatch.setattr("gatewise_edge.link.broker_connection._FIRST_PAUSE_SECONDS", 0.1)


class MqttClient:
    """A client that records messages. The constructor connects and subscribes.

    Parameters
    ----------
    url : str
        URL of the broker.
    *topics : str
        Topics of the subscription.
    name : str, optional
        Client id.
    files : dict, optional
        Certificates, see :class:`.Endpoint`.
    will : tuple, optional
        Arguments of paho's ``will_set``.

    Attributes
    ----------
    messages : list of (str, bytes, bool)
        Topic, payload and retain flag of all messages.
    inbox : queue of (str, bytes)
        Topic and payload of the messages that :meth:`get` has not returned.
    subscription_codes : list of int
        The broker's codes for the latest subscription; 128 and more mean refused.
    """

    def __init__(
        self,
        url: str,
        *topics: str,
        name: str = "",
        files: dict[str, Any] | None = None,
        will: tuple[Any, ...] | None = None,
    ) -> None:
        self.messages: list[tuple[str, bytes, bool]] = []
        self.inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._topics = [(topic, 1) for topic in topics]
        self._ready = threading.Event()
        endpoint = Endpoint(url, **(files or {}))
        self.client = make_client(endpoint, name, max_inflight=1000)
        if will is not None:
            self.client.will_set(*will)
        self.client.on_connect = self._on_connect
        self.subscription_codes: list[int] = []
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = lambda _client, _userdata, message: self.record(message)
        self.client.connect(endpoint.host, endpoint.port)
        self.client.loop_start()
        assert self._ready.wait(TIMEOUT_S), "no connection"

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        if self._topics:
            client.subscribe(self._topics)
        else:
            self._ready.set()

    def _on_subscribe(
        self,
        _client: Any,
        _userdata: Any,
        _message_id: int,
        reason_codes: Any,
        _properties: Any,
    ) -> None:
        self.subscription_codes = [int(reason.value) for reason in reason_codes]
        self._ready.set()

    def subscribe(self, *topics: str) -> None:
        """Subscribe to more topics, and wait until the broker grants or refuses them."""
        self._ready.clear()
        self.client.subscribe([(topic, 1) for topic in topics])
        assert self._ready.wait(TIMEOUT_S), "no acknowledgement"

    def record(self, message: paho.MQTTMessage) -> None:
        """Record a message; called on paho's thread."""
        payload = bytes(message.payload)
        self.messages.append((message.topic, payload, message.retain))
        self.inbox.put((message.topic, payload))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for the acknowledgement."""
        publication = self.client.publish(topic, payload, qos=1, retain=retain)
        publication.wait_for_publish(TIMEOUT_S)
        assert publication.is_published()

    def get(self, timeout_s: float = TIMEOUT_S) -> tuple[str, bytes]:
        """Get the next message."""
        return self.inbox.get(timeout=timeout_s)

    def is_silent(self, timeout_s: float = 0.3) -> bool:
        """Whether no message comes for some time."""
        try:
            self.get(timeout_s)
        except queue.Empty:
            return True
        return False

    def break_connection(self) -> None:
        """Break the connection without a DISCONNECT."""
        self.client.loop_stop()
        self.client.reinitialise()

    def close(self) -> None:
        close_client(self.client)


class DeviceClient(MqttClient):
    """A device that publishes requests and records responses and dead letters."""

    def __init__(self, url: str, device: str) -> None:
        self.device = device
        topics = (wire.response_topic(device), "gw/v1/dead/+")
        super().__init__(url, *topics, name=f"caller-{device}")

    def send(self, payload: bytes, *, topic: str | None = None, retain: bool = False) -> None:
        topic = topic or wire.request_topic(self.device)
        self.client.publish(topic, payload, qos=1, retain=retain)

    def ask(
        self,
        X: NDArray[np.float32],
        *,
        model: str = "tiny",
        version: str = "1",
        ttl_ms: int = 5000,
        id: bytes | None = None,  # noqa: A002
        audit: AuditMark | None = None,
        **fields: Any,
    ) -> wire.Request:
        """Send a request and return it."""
        request = wire.Request(
            id=id or wire.new_id(),
            model=model,
            version=version,
            ttl_ms=ttl_ms,
            X=X,
            audit=audit,
            **fields,
        )
        self.send(wire.encode_request(request))
        return request

    def response(self, timeout_s: float = TIMEOUT_S) -> wire.Response:
        topic, payload = self.get(timeout_s)
        assert topic == wire.response_topic(self.device)
        return wire.decode_response(payload)

    def responses(self, n_responses: int) -> list[wire.Response]:
        return [self.response() for _ in range(n_responses)]


class SimulatedWorker(MqttClient):
    """A simulated worker that receives every request, and responds as the test defines.

    Parameters
    ----------
    url : str
        URL of the broker.
    respond_to : callable
        Function of a request that returns the responses.
    """

    def __init__(self, url: str, respond_to: Callable[[wire.Request], list[wire.Response]]) -> None:
        self.respond_to = respond_to
        self.requests: list[wire.Request] = []
        self.payloads: list[bytes] = []
        self.statuses: list[tuple[str, str]] = []
        super().__init__(url, wire.REQUEST_TOPICS, "gw/v1/+/status")

    def record(self, message: paho.MQTTMessage) -> None:
        device = wire.device_of(message.topic)
        if message.topic.endswith("/status"):
            self.statuses.append((device, message.payload.decode()))
            return
        request = wire.decode_request(message.payload)
        self.requests.append(request)
        self.payloads.append(bytes(message.payload))
        for response in self.respond_to(request):
            self.respond(device, wire.encode_response(response))

    def respond(self, device: str, payload: bytes) -> None:
        """Publish a response to a device, without waiting."""
        self.client.publish(wire.response_topic(device), payload, qos=1)
