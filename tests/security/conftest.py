"""Fixtures of the secured broker, its clients, and the small bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gatewise_cloud.broker.broker_init import BrokerFolder
from tests.support import processes, small_bundle
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.mqtt_clients import MqttClient

bundle = small_bundle.bundle
command = processes.command
make_bundle = small_bundle.make_bundle


@pytest.fixture(scope="session")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> BrokerFolder:
    """Certificates and access list of a broker, with a labeller `bench`."""
    return make_broker_folder(tmp_path_factory.mktemp("secure") / "broker", labellers=["bench"])


@pytest.fixture
def secure_broker(broker_folder: BrokerFolder) -> Iterator[SecureBroker]:
    """A running broker that demands certificates."""
    # Delete the retained messages of other tests.
    (broker_folder.folder / "data" / "mosquitto.db").unlink(missing_ok=True)
    broker = SecureBroker(broker_folder)
    yield broker
    broker.close()


@pytest.fixture
def connect_client(secure_broker: SecureBroker) -> Iterator[Callable[..., MqttClient]]:
    """Fixture that connects a client of the roster once, and subscribes it to topics."""
    clients: dict[str, MqttClient] = {}

    def connect_once(name: str, *topics: str) -> MqttClient:
        if name not in clients:
            clients[name] = MqttClient(
                secure_broker.url, *topics, files=secure_broker.broker_folder.client_arguments(name)
            )
        elif topics:
            clients[name].subscribe(*topics)
        return clients[name]

    yield connect_once
    for client in clients.values():
        client.close()
