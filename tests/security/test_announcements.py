"""Tests that only the operator can announce a release, and an announcement only causes a check."""

from __future__ import annotations

import pytest

from gatewise_cloud.broker import mqtt_client
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_edge.device.device import Device
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.mqtt import MqttLink
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.repository.repository import Repository
from tests.support.waiting import wait_until

TOPIC = manifest_topic("small")
#: Longest wait for a connection, on a machine that runs many tests.
CONNECT_SECONDS = 60


@pytest.fixture
def repository(tmp_path, make_bundle):
    """A repository with versions 8 and 9, neither of which is published."""
    repository = Repository.init(tmp_path / "repo")
    for version in ("8", "9"):
        repository.add(make_bundle(f"source-{version}", version=version).path)
    return repository


@pytest.fixture
def running_device(tmp_path, secure_broker, repository, make_bundle):
    """A device with version 7 that checks for updates on announcements."""
    first_bundle = make_bundle("first").path
    link = MqttLink(
        secure_broker.url, device="pi-1", **secure_broker.broker_folder.client_arguments("pi-1")
    )
    updater = Updater(
        Store(tmp_path / "store"),
        UpdateSettings(
            urls=[repository.folder.as_uri()],
            trust=repository.root_file,
            first_bundle=first_bundle,
            device="pi-1",
            min_interval=0.2,  # seconds; the shortest pause between checks would make tests slow
        ),
        link=link,
    )
    with Device(first_bundle, link=link, observe=updater.observe) as device, updater:
        updater.start(device)
        link.connect(CONNECT_SECONDS)
        yield device, updater


@pytest.fixture
def announce(secure_broker):
    """Fixture that publishes an announcement, by default as the operator."""

    def publish_announcement(
        payload,
        *,
        client_name="boss",
    ):
        endpoint = Endpoint(
            secure_broker.url, **secure_broker.broker_folder.client_arguments(client_name)
        )
        publish_retained(endpoint, TOPIC, payload)

    return publish_announcement


@pytest.mark.slow
def test_an_announcement_causes_a_check_and_nothing_else(repository, running_device, announce):
    device, updater = running_device
    wait_until(lambda: updater.counters["checks"] >= 1, "the first check")
    repository.publish("small/8")
    announce(b"news")
    wait_until(lambda: device.bundle.manifest.version == "8", "version 8")
    # a holder of the operator's certificate without the signing key can only cause checks
    counters_before = updater.counters
    for payload in (b"noise", b"\xff" * 9000, b"news", b'{"version": "9", "serial": 999}'):
        announce(payload)
    wait_until(lambda: updater.counters["announced"] >= counters_before["announced"] + 4, "all 4")
    wait_until(lambda: updater.counters["checks"] > counters_before["checks"], "a check")
    assert device.bundle.manifest.version == "8"
    assert updater.counters["adopted"] == 1
    assert updater.trouble is None
    repository.publish("small/9")
    announce(b"news again")
    wait_until(lambda: device.bundle.manifest.version == "9", "version 9")


@pytest.mark.slow
def test_an_announcement_by_a_device_is_not_delivered(announce, monkeypatch):
    monkeypatch.setattr(mqtt_client, "TIMEOUT_SECONDS", 0.5)  # the wait is in vain
    with pytest.raises(LinkError, match="does not deliver"):
        announce(b"news", client_name="pi-2")
