"""Fixtures of the secured broker, its clients, and the small bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gatewise_cloud.broker.broker_init import BrokerFolder
from tests.support import mqtt_clients, processes, small_bundle
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.mqtt_clients import MqttClient

# pytest finds fixtures by the names in this file
bundle = small_bundle.bundle
command = processes.command
make_bundle = small_bundle.make_bundle
quick_reconnects = mqtt_clients.quick_reconnects


@pytest.fixture(scope="session")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> BrokerFolder:
    """Certificates and access list of a broker, with a labeller `bench`."""
    return make_broker_folder(tmp_path_factory.mktemp("secure") / "broker", labellers=["bench"])


@pytest.fixture
def secure_broker(broker_folder: BrokerFolder) -> Iterator[SecureBroker]:
    """A running broker that demands certificates."""
    # the folder serves all tests, so delete the retained messages of those before
    (broker_folder.folder / "data" / "mosquitto.db").unlink(missing_ok=True)
    broker = SecureBroker(broker_folder)
    yield broker
    broker.close()


@pytest.fixture
def connect_client(secure_broker: SecureBroker) -> Iterator[Callable[..., MqttClient]]:
    """Function that connects the client of a name in the roster, and subscribes it to topics.

    Another call for the same name subscribes the same client to further topics, because a broker
    disconnects a client whose id connects again.
    """
    client_of_name: dict[str, MqttClient] = {}

    def connect_once(name: str, *topics: str) -> MqttClient:
        if name not in client_of_name:
            certificate_files = secure_broker.broker_folder.client_arguments(name)
            client_of_name[name] = MqttClient(secure_broker.url, *topics, files=certificate_files)
        elif topics:
            client_of_name[name].subscribe(*topics)
        return client_of_name[name]

    yield connect_once
    for client in client_of_name.values():
        client.close()
