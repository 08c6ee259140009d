"""Fixtures: the small bundle, a real broker, simulated workers, and commands as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatewise_edge.link import wire
from tests.edge.virtual_time import Clock
from tests.support import lazy_bundle as tree_bundle
from tests.support import mqtt_clients, processes, small_bundle
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import SimulatedWorker

# pytest finds fixtures of other modules by their names here
bundle = small_bundle.bundle
make_bundle = small_bundle.make_bundle
lazy_bundle = tree_bundle.lazy_bundle
command = processes.command
quick_reconnects = mqtt_clients.quick_reconnects


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def make_peer(broker: Mosquitto) -> Iterator[Callable[..., SimulatedWorker]]:
    """Function that connects a simulated worker; `respond_to` replaces its answers."""
    workers: list[SimulatedWorker] = []

    def connect_worker(
        respond_to: Callable[[wire.Request], list[wire.Response]] | None = None,
    ) -> SimulatedWorker:
        respond_to = respond_to or (lambda request: [small_bundle.answer_to(request)])
        workers.append(SimulatedWorker(broker.url, respond_to))
        return workers[-1]

    yield connect_worker
    for worker in workers:
        worker.close()
