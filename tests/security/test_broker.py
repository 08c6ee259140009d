"""Tests of the access rights of each role at the broker of `gatewise broker init`.

MQTT 3.1.1 does not report a refusal. Therefore the tests read the broker's log, or publish an
allowed message afterwards, which must arrive first.
"""

from __future__ import annotations

import queue
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gatewise_cloud.archive.label_message import decode_label
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.errors import LinkError
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.needs import find_program
from tests.support.small_bundle import HARD_ROW
from tests.support.waiting import wait_until

# paho leaves the socket of a failed handshake to the garbage collector.
pytestmark = [
    pytest.mark.slow,  # a broker with TLS starts
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: Longest wait for a connection, on a machine that runs many tests.
CONNECT_SECONDS = 60
#: Enough to show that more than a first request passes.
N_INSTANCES = 20


def test_a_device_and_a_worker_exchange_messages(secure_broker, bundle, caplog):
    client_arguments = secure_broker.broker_folder.client_arguments
    with Worker(
        bundle, secure_broker.url, **secure_broker.broker_folder.worker_arguments("w-1")
    ) as worker:
        # the access list allows the round trip of its probe
        assert worker.subscription.startswith("$share/")
        link = MqttLink(secure_broker.url, device="pi-1", **client_arguments("pi-1"))
        with Device(bundle, link=link, deadline_ms=20_000) as device:
            link.connect(CONNECT_SECONDS)
            answers = [device.answer(HARD_ROW) for _ in range(N_INSTANCES)]
    assert {answer.route for answer in answers} == {"cloud"}
    assert worker.counters["answered"] == N_INSTANCES
    assert "Denied" not in secure_broker.log
    assert "not allowed" not in caplog.text  # its subscriptions


def test_presence_announcements_and_dead_letters_are_allowed(secure_broker, connect_client):
    operator = connect_client("boss", "gw/v1/+/status", "gw/v1/dead/+")
    device = connect_client("pi-1", "gw/v1/model/#")
    device.publish("gw/v1/pi-1/status", b"online")
    assert operator.get() == ("gw/v1/pi-1/status", b"online")
    connect_client("w-1").publish("gw/v1/dead/cbor", b"noise")
    assert operator.get() == ("gw/v1/dead/cbor", b"noise")
    operator.publish("gw/v1/model/small/manifest", b"announced")
    assert device.get() == ("gw/v1/model/small/manifest", b"announced")


#: Forbidden publishes: client, topic, reader of the topic, and a client that may publish.
FORBIDDEN_PUBLISHES = [
    # a device under the name of another device
    *[
        ("pi-1", f"gw/v1/pi-2/{level}", reader, "pi-2")
        for level, reader in (
            ("req", "w-1"), ("req/json", "w-1"), ("session", "boss"), ("answers", "boss"),
            ("status", "boss"),
        )
    ],
    # a response by a device
    ("pi-1", "gw/v1/pi-2/rsp", "pi-2", "w-1"),
    ("pi-1", "gw/v1/pi-1/rsp", "pi-1", "w-1"),
    ("pi-1", "gw/v1/pi-1/rsp/json", "pi-1", "w-1"),
    # a label by a device, a request by a labeller
    ("pi-1", "gw/v1/bench/labels", "w-1", "bench"),
    ("pi-1", "gw/v1/bench/labels/json", "w-1", "bench"),
    ("bench", "gw/v1/pi-1/req", "w-1", "pi-1"),
    # an announcement by another role than operator, a dead letter by a device
    ("pi-1", "gw/v1/model/small/manifest", "pi-2", "boss"),
    ("w-1", "gw/v1/model/small/manifest", "pi-2", "boss"),
    ("pi-1", "gw/v1/dead/cbor", "boss", "w-1"),
    # requests and responses by the operator, a request by a worker
    ("boss", "gw/v1/pi-1/rsp", "pi-1", "w-1"),
    ("boss", "gw/v1/pi-1/req", "w-1", "pi-1"),
    ("w-1", "gw/v1/pi-1/req", "boss", "pi-1"),
]  # fmt: skip
#: Forbidden subscriptions: client, topic, and a client that publishes on it.
FORBIDDEN_SUBSCRIPTIONS = [
    ("pi-1", "gw/v1/pi-2/rsp", "w-1"),
    ("pi-1", "gw/v1/pi-2/rsp/json", "w-1"),
    ("pi-1", "gw/v1/pi-2/req", "pi-2"),
    ("pi-1", "$share/gw/gw/v1/+/req/json", "pi-2"),
    ("pi-1", "gw/v1/+/req", "pi-2"),
    ("pi-1", "$share/gw/gw/v1/+/req", "pi-2"),
    ("pi-1", "gw/v1/dead/cbor", "w-1"),
    ("pi-1", "gw/v1/bench/labels", "bench"),
    ("w-1", "gw/v1/pi-2/status", "pi-2"),
]


def test_forbidden_publishes_are_denied(secure_broker, connect_client):
    for publisher, topic, reader_name, writer_name in FORBIDDEN_PUBLISHES:
        subscriber = connect_client(reader_name, topic)
        connect_client(publisher).publish(topic, b"forged")
        secure_broker.wait_for_line(rf"Denied PUBLISH from {publisher} .*'{topic}'")
        connect_client(writer_name).publish(topic, b"true")
        assert subscriber.get() == (topic, b"true")


def test_labels_need_the_role_of_a_labeller_and_bear_its_name(secure_broker, connect_client):
    worker = connect_client("w-1", wire.LABEL_TOPICS, f"{wire.LABEL_TOPICS}/json")
    connect_client("pi-1").publish("gw/v1/pi-1/labels", b"its own")
    connect_client("bench").publish("gw/v1/pi-1/labels/json", b"under another name")
    connect_client("bench").publish("gw/v1/bench/labels/json", b"true")
    assert worker.get() == ("gw/v1/bench/labels/json", b"true")
    secure_broker.wait_for_line(r"Denied PUBLISH from pi-1 .*'gw/v1/pi-1/labels'")


def test_the_command_in_the_docs_sends_a_label_with_a_certificate(secure_broker, connect_client):
    program = find_program("mosquitto_pub", "apt install mosquitto-clients")
    page = (Path(__file__).parents[2] / "docs/audit.md").read_text()
    (command,) = re.findall(r"^(mosquitto_pub .*?)\n```", page, re.DOTALL | re.MULTILINE)
    certificate_files = secure_broker.broker_folder.client_arguments("bench")
    for text_in_docs, text_here in (
        ("mosquitto_pub", program),
        ("broker.example", "127.0.0.1"),
        ("8883", str(secure_broker.broker_folder.roster.port)),
        ("ca.crt", certificate_files["ca_file"]),
        ("bench-1.crt", certificate_files["cert_file"]),
        ("bench-1.key", certificate_files["key_file"]),
        ("bench-1", "bench"),
    ):
        assert text_in_docs in command
        command = command.replace(text_in_docs, text_here)
    worker = connect_client("w-1", f"{wire.LABEL_TOPICS}/json")
    subprocess.run(shlex.split(command.replace("\\\n", "")), check=True)
    topic, payload = worker.get()
    label = decode_label(topic, payload, 0.0)
    assert (label.by, label.device, label.label) == ("bench", "pi-1", "worn")


def test_forbidden_subscriptions_get_no_message(connect_client):
    for subscriber_name, topic, writer_name in FORBIDDEN_SUBSCRIPTIONS:
        own_topic = f"gw/v1/{subscriber_name}/probe"
        subscriber = connect_client(subscriber_name, topic, own_topic)
        concrete_topic = topic.removeprefix("$share/gw/").replace("+", "pi-2")
        connect_client(writer_name).publish(concrete_topic, b"secret")
        # the broker has routed the message when it grants this subscription
        connect_client("boss", concrete_topic)
        subscriber.publish(own_topic, b"end")
        assert subscriber.get() == (own_topic, b"end")
        with pytest.raises(queue.Empty):
            subscriber.get(0.1)  # in vain, because the end came first


def test_an_oversized_message_ends_the_connection(secure_broker, connect_client):
    worker = connect_client("w-1", wire.REQUEST_TOPICS)
    largest_payload = b"x" * wire.MAX_PAYLOAD
    connect_client("pi-1").publish("gw/v1/pi-1/req", largest_payload)
    assert worker.get() == ("gw/v1/pi-1/req", largest_payload)
    device = connect_client("pi-1")
    device.client.publish("gw/v1/pi-1/req", b"x" * (wire.MAX_PAYLOAD + 1), qos=1)
    secure_broker.wait_for_line(r"Dropped too large PUBLISH from pi-1")
    # The broker drops a payload above its limit, and ends the connection for one far above it.
    device.client.publish("gw/v1/pi-1/req", b"x" * (2 * wire.MAX_PAYLOAD), qos=1)
    secure_broker.wait_for_line(r"Client pi-1 disconnected due to oversize packet")
    connect_client("pi-2").publish("gw/v1/pi-2/req", b"true")
    assert worker.get() == ("gw/v1/pi-2/req", b"true")


def connect_link(url, device="pi-1", **files):
    """Connect a device's link and close it."""
    link = MqttLink(url, device=device, **files)
    try:
        link.connect(CONNECT_SECONDS)
    finally:
        link.close()


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    """Certificates of the same names from another authority."""
    return make_broker_folder(tmp_path_factory.mktemp("stranger") / "broker")


def test_clients_without_a_certificate_of_the_authority_are_refused(secure_broker, other_folder):
    authority_file = {"ca_file": secure_broker.broker_folder.client_arguments("pi-1")["ca_file"]}
    with pytest.raises(LinkError):
        connect_link(secure_broker.url, **authority_file)
    secure_broker.wait_for_line("peer did not return a certificate")
    with pytest.raises(LinkError):
        connect_link(secure_broker.url, **(other_folder.client_arguments("pi-1") | authority_file))
    secure_broker.wait_for_line("certificate verify failed|unknown ca")
    # a device refuses a broker of another authority
    for certificate_files in (other_folder.client_arguments("pi-1"), {}):
        with pytest.raises(LinkError, match="certificate verify failed"):
            connect_link(secure_broker.url, **certificate_files)
    assert " as pi-1" not in secure_broker.log


def test_the_certificate_of_the_server_is_refused_for_a_client(secure_broker):
    certificate_files = secure_broker.broker_folder.client_arguments("pi-1")
    folder = secure_broker.broker_folder.folder
    certificate_files |= {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
    with pytest.raises(LinkError):
        connect_link(secure_broker.url, **certificate_files)
    secure_broker.wait_for_line("unsupported certificate purpose|certificate verify failed")


@pytest.mark.usefixtures("quick_reconnects")
def test_a_revoked_device_is_refused_and_a_renewed_one_is_not(tmp_path):
    """A client uses its renewed certificate at its next connection."""
    broker_folder = make_broker_folder(tmp_path / "broker")
    old_files = {
        setting: shutil.copy(path, tmp_path / setting)
        for setting, path in broker_folder.client_arguments("pi-1").items()
    }
    broker = SecureBroker(broker_folder)
    link = MqttLink(broker.url, device="pi-1", **broker_folder.client_arguments("pi-1"))
    link.open(lambda _: None)
    try:
        link.connect(CONNECT_SECONDS)
        broker.close()
        wait_until(lambda: not link.is_ready, "the end of the connection")
        expiry_before = link.certificate_expires
        renewed_folder = make_broker_folder(
            broker_folder.folder, devices=[], revoke=["pi-2"], renew=["pi-1"], port=broker.port
        )
        assert renewed_folder.roster.devices == ("pi-1",)
        broker = SecureBroker(renewed_folder)
        wait_until(lambda: link.is_ready, "a connection with the new certificate")
        assert link.certificate_expires >= expiry_before
        link.close()
        with pytest.raises(LinkError):
            connect_link(broker.url, **old_files)
        broker.wait_for_line("certificate verify failed|revoked")
    finally:
        link.close()
        broker.close()
