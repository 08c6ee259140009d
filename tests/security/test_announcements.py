"""Announcements of models over the secured broker: replayed, forged, or by who may not announce."""

from __future__ import annotations

import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.mqtt import MqttLink
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update import Store, Updater, publish
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen

pytestmark = pytest.mark.slow  # a broker with TLS starts

TOPIC = manifest_topic("small")


@pytest.fixture
def fleet(tmp_path, make_bundle, secure):
    """Keys, signed versions 7 and 8, and the operator's `publish`."""

    class Fleet:
        key, pub = keygen(tmp_path / "fleet")
        other, _ = keygen(tmp_path / "other")

        def version(self, version, key=None):
            source = make_bundle(f"source-{version}", version=version)
            path = tmp_path / f"v{version}.gwb"
            repack(source.path, path, sign=key or self.key, for_device=True)
            return path

        def announce(self, path, *, key=None, who="boss", **options):
            endpoint = Endpoint(secure.url, **secure.made.client(who))
            return publish(path, path.as_uri(), key or self.key, endpoint, **options)

    return Fleet()


@pytest.fixture
def running(tmp_path, secure, fleet):
    """A device with version 7 that takes what is announced."""
    first = fleet.version("7")
    store = Store(tmp_path / "store", public_key=fleet.pub)
    link = MqttLink(secure.url, device="pi-1", **secure.made.client("pi-1"))
    updater = Updater(
        link, store, model="small", public_key=fleet.pub, hosts=[], allow_files=True, first=first
    )
    bundle = Bundle.open(first, public_key=fleet.pub, for_device=True)
    with Device(bundle, link=link, observe=updater.observe) as device, updater:
        updater.start(device)
        link.connect(60)
        yield device, updater


def test_an_announcement_is_taken_once_and_an_old_one_never(secure, enter, fleet, running, tools):
    device, updater = running
    witness = enter("pi-2", TOPIC)
    fleet.announce(fleet.version("8"), serial=100)
    topic, old = witness.get()
    assert topic == TOPIC
    tools.until(lambda: device.bundle.manifest.version == "8", "version 8")
    # Going back is a new announcement of the old version: its serial is higher.
    fleet.announce(fleet.version("9"), serial=101)
    tools.until(lambda: device.bundle.manifest.version == "9", "version 9")

    # Whoever holds the operator's certificate, but not the signing key, has only what was said.
    thief = enter("boss")
    thief.publish(TOPIC, old, retain=True)
    tools.until(lambda: updater.counters["replayed"] == 1, "the replay")
    assert device.bundle.manifest.version == "9"
    # The serial is part of what is signed.
    thief.publish(TOPIC, old.replace(b'"serial": 100', b'"serial": 999'))
    tools.until(lambda: updater.counters["forged"] == 1, "the forgery")
    thief.publish(TOPIC, b"noise")
    tools.until(lambda: updater.counters["malformed"] == 1, "the noise")
    assert device.bundle.manifest.version == "9"
    assert updater.counters["taken"] == 2


def test_an_announcement_with_another_key_is_forged(fleet, running, tools):
    device, updater = running
    fleet.announce(fleet.version("8", key=fleet.other), key=fleet.other)
    tools.until(lambda: updater.counters["forged"] == 1, "the forgery")
    assert device.bundle.manifest.version == "7"


@pytest.mark.parametrize("who", ["pi-2", "w-1"])
def test_only_the_operator_announces(secure, enter, fleet, running, tools, who):
    """A stolen announcement is not even passed on, from a device or a worker."""
    device, updater = running
    witness = enter("boss", TOPIC)
    path = fleet.version("8")
    with pytest.raises(LinkError):
        fleet.announce(path, who=who, timeout=2)
    secure.wait_for_line(rf"Denied PUBLISH .*'{TOPIC}'")
    fleet.announce(path)
    witness.get()
    tools.until(lambda: device.bundle.manifest.version == "8", "version 8")
    assert updater.counters["announced"] == 1
