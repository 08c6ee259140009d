"""Fixtures: the small bundle, a real broker, and an MQTT client that answers like a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatewise_edge.link import wire
from tests.support import processes, small_bundle
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import SimulatedWorker

bundle = small_bundle.bundle
make_bundle = small_bundle.make_bundle
command = processes.command


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def make_peer(broker: Mosquitto) -> Iterator[Callable[..., SimulatedWorker]]:
    """Connect a client that answers like a worker; `respond_to` replaces its answers."""
    peers: list[SimulatedWorker] = []

    def make_peer(
        respond_to: Callable[[wire.Request], list[wire.Response]] | None = None,
    ) -> SimulatedWorker:
        respond_to = respond_to or (lambda request: [small_bundle.answer_to(request)])
        peers.append(SimulatedWorker(broker.url, respond_to))
        return peers[-1]

    yield make_peer
    for peer in peers:
        peer.close()
