"""Fixtures of the cloud tests: small bundles, real brokers and MQTT callers."""

import shutil

import pytest

from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker
from gatewise_edge.link import wire
from gatewise_edge.link.endpoint import Endpoint
from gatewise_export.repository.repository import Repository
from tests.support import mqtt_clients, processes, small_bundle, tiny_bundle
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import DeviceClient

command = processes.command
quick_reconnects = mqtt_clients.quick_reconnects


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return tiny_bundle.write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def slow_bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "slow"
    graph = tiny_bundle.slow_graph()
    return tiny_bundle.write_bundle(path, name="slow", graph=graph)


@pytest.fixture(scope="session")
def mosquitto():
    with MosquittoBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_broker():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(params=["mosquitto", "embedded_broker"])
def any_broker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def locked_mosquitto(tmp_path):
    """URL of a mosquitto that refuses all clients."""
    with Mosquitto(tmp_path, "allow_anonymous false") as broker:
        yield broker.url


@pytest.fixture
def connect_caller():
    """Function that connects a caller with a new device id to a given broker."""
    callers = []

    def connect_caller(broker):
        callers.append(DeviceClient(broker.url, f"d{len(callers)}-{wire.new_id().hex()[:8]}"))
        return callers[-1]

    yield connect_caller
    for caller in callers:
        caller.close()


@pytest.fixture(scope="session")
def repository_template(tmp_path_factory):
    """Folder with a repository and its keys, which `repository` copies."""
    folder = tmp_path_factory.mktemp("repository")
    repository = Repository.init(folder / "repo")
    for version in ("7", "8"):
        bundle = small_bundle.write_bundle(folder / f"v{version}", version=version)
        repository.add(bundle.path)
    repository.publish("small/7")
    return folder


@pytest.fixture
def repository(repository_template, tmp_path):
    """Repository with small/7, which it offers, and small/8."""
    shutil.copytree(repository_template, tmp_path, dirs_exist_ok=True)
    return Repository(tmp_path / "repo")


@pytest.fixture
def endpoint(tmp_path):
    with Mosquitto(tmp_path) as broker:
        yield Endpoint(broker.url)
