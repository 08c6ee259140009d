"""The broker of a live run: a given broker, or one that the run starts and can kill."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Final, Self

from gatewise.errors import GatewiseError
from gatewise_cloud.broker.broker import Broker, EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.mqtt_client import close_client, open_client
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_edge.link.wire import status_topic

#: Longest wait for the acknowledgement of a deletion, because the end of a run must not hang.
_CLEAR_SECONDS: Final = 2.0


class RunBroker:
    """Broker of a run, as a context manager.

    Without a `url` the run starts mosquitto, or the embedded broker if mosquitto is not installed.
    `kind` is ``"mosquitto"``, ``"embedded"`` or the URL of a given broker without user and
    password.
    """

    def __init__(self, url: str | None = None) -> None:
        self._broker_class = EmbeddedBroker if find_mosquitto() is None else MosquittoBroker
        self._own_broker: Broker | None = None
        if url is None:
            self._own_broker = self._broker_class()
            self.url = self._own_broker.url
            self.kind = self._broker_class.kind
        else:
            self.url = url
            self.kind = Endpoint(url).url

    @property
    def is_own(self) -> bool:
        """Whether the run started the broker, and may kill it."""
        return self._own_broker is not None

    @property
    def pid(self) -> int | None:
        """Process id of a broker that the run started."""
        return None if self._own_broker is None else self._own_broker.pid

    @property
    def trouble(self) -> str | None:
        """Reason why the run's broker ended; None while it runs, and for a given broker."""
        if self._own_broker is None or self._own_broker.is_alive:
            return None
        return (
            f"the {self.kind} broker ended: {self._own_broker.last_lines or 'it left no message'}"
        )

    def fail(self) -> None:
        """Kill the broker, if the run started it."""
        if self._own_broker is not None:
            self._own_broker.kill()

    def recover(self) -> None:
        """Start the broker again on the same port."""
        assert self._own_broker is not None
        self._own_broker = self._broker_class(self._own_broker.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own_broker is not None:
            self._own_broker.close()


def clear_status(url: str, devices: Sequence[str]) -> None:
    """Delete the retained status of devices, which a given broker would keep after the run.

    It does nothing if the broker is down.
    """
    endpoint = Endpoint(url)
    client = make_client(endpoint, f"gw-{secrets.token_hex(6)}", max_inflight=len(devices))
    # Do not replace an error of the run with an error of this cleanup.
    with contextlib.suppress(GatewiseError, RuntimeError, ValueError):
        open_client(client, endpoint)
        client.loop_start()
        messages = [
            client.publish(status_topic(device), b"", qos=1, retain=True) for device in devices
        ]
        for message in messages:
            message.wait_for_publish(_CLEAR_SECONDS)
    close_client(client)
