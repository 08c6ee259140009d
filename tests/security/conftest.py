"""The secured broker of these tests, clients on it, and the small bundle of the edge's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from gatewise_cloud.broker.broker_init import BrokerFolder
from tests.security.secure import (
    EDGE,
    HARD,
    Client,
    SecureBroker,
    free_port,
    make_folder,
    until,
)

bundle = EDGE.bundle
make_bundle = EDGE.make_bundle


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> BrokerFolder:
    return make_folder(tmp_path_factory.mktemp("secure") / "broker")


@pytest.fixture
def secure(made: BrokerFolder) -> Iterator[SecureBroker]:
    # What another test's broker kept would come back.
    (made.folder / "data" / "mosquitto.db").unlink(missing_ok=True)
    broker = SecureBroker(made)
    yield broker
    broker.close()


@pytest.fixture
def enter(secure: SecureBroker) -> Iterator[Callable[..., Client]]:
    """Enter as a client of the roster: ``enter("pi-1", "topic", ...)``."""
    inside: list[Client] = []

    def come(name: str, *topics: str) -> Client:
        number = len(inside)
        client = Client(secure.url, f"test-{number}-{name}", secure.made.client(name), *topics)
        inside.append(client)
        return client

    yield come
    for client in inside:
        client.close()


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        answer_to=EDGE.answer_to,
        Client=Client,
        free_port=free_port,
        HARD=HARD,
        make_folder=make_folder,
        SecureBroker=SecureBroker,
        until=until,
        write_bundle=EDGE.write_bundle,
    )
