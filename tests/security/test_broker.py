"""Access rights of each role at the broker of `gatewise broker init`.

MQTT 3.1.1 does not report a refusal. Therefore the tests read the broker's log, or publish an
allowed message afterwards, which must arrive first.
"""

from __future__ import annotations

import queue
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gatewise_cloud.archive.label_message import decode_label
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.errors import LinkError
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.needs import find_program
from tests.support.small_bundle import HARD_ROW
from tests.support.waiting import wait_until

# paho leaves the socket of a failed handshake to the garbage collector.
pytestmark = [
    pytest.mark.slow,  # a broker with TLS starts
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_device_and_a_worker_exchange_messages(secure, bundle, caplog):
    files = secure.broker_folder.client_arguments
    with Worker(bundle, secure.url, **secure.broker_folder.worker_arguments("w-1")) as worker:
        # the access list allows the round trip of its probe
        assert worker.subscription.startswith("$share/")
        link = MqttLink(secure.url, device="pi-1", **files("pi-1"))
        with Device(bundle, link=link, deadline_ms=20_000) as device:
            link.connect(60)
            answers = [device.answer(HARD_ROW) for _ in range(20)]
    assert {answer.route for answer in answers} == {"cloud"}
    assert worker.counters["answered"] == 20
    assert "Denied" not in secure.log
    assert "not allowed" not in caplog.text  # its subscriptions


def test_presence_metrics_announcements_and_dead_letters_are_allowed(secure, enter):
    boss = enter("boss", "gw/v1/+/status", "gw/v1/+/metrics", "gw/v1/dead/+")
    device = enter("pi-1", "gw/v1/model/#")
    device.publish("gw/v1/pi-1/status", b"online")
    assert boss.get() == ("gw/v1/pi-1/status", b"online")
    device.publish("gw/v1/pi-1/metrics", b"{}")
    assert boss.get() == ("gw/v1/pi-1/metrics", b"{}")
    enter("w-1").publish("gw/v1/dead/cbor", b"noise")
    assert boss.get() == ("gw/v1/dead/cbor", b"noise")
    boss.publish("gw/v1/model/small/manifest", b"announced")
    assert device.get() == ("gw/v1/model/small/manifest", b"announced")


#: Forbidden publishes: client, topic, reader of the topic, and a client that may publish.
FORBIDDEN_PUBLISHES = [
    # a device under the name of another device
    *[
        ("pi-1", f"gw/v1/pi-2/{level}", reader, "pi-2")
        for level, reader in (
            ("req", "w-1"), ("req/json", "w-1"), ("session", "boss"), ("answers", "boss"),
            ("status", "boss"), ("metrics", "boss"),
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


def test_forbidden_publishes_are_denied(secure, enter):
    for who, topic, reader, writer in FORBIDDEN_PUBLISHES:
        reads = enter(reader, topic)
        enter(who).publish(topic, b"forged")
        secure.wait_for_line(rf"Denied PUBLISH from {who} .*'{topic}'")
        enter(writer).publish(topic, b"true")
        assert reads.get() == (topic, b"true")


def test_labels_need_the_role_of_a_labeller_and_bear_its_name(secure, enter):
    reads = enter("w-1", wire.LABEL_TOPICS, f"{wire.LABEL_TOPICS}/json")
    enter("pi-1").publish("gw/v1/pi-1/labels", b"its own")
    enter("bench").publish("gw/v1/pi-1/labels/json", b"under another name")
    enter("bench").publish("gw/v1/bench/labels/json", b"true")
    assert reads.get() == ("gw/v1/bench/labels/json", b"true")
    secure.wait_for_line(r"Denied PUBLISH from pi-1 .*'gw/v1/pi-1/labels'")


def test_the_command_in_the_docs_sends_a_label_with_a_certificate(secure, enter):
    program = find_program("mosquitto_pub", "apt install mosquitto-clients")
    page = (Path(__file__).parents[2] / "docs/audit.md").read_text()
    (command,) = re.findall(r"^(mosquitto_pub .*?)\n```", page, re.DOTALL | re.MULTILINE)
    files = secure.broker_folder.client_arguments("bench")
    for written, here in (
        ("mosquitto_pub", program),
        ("broker.example", "127.0.0.1"),
        ("8883", str(secure.broker_folder.roster.port)),
        ("ca.crt", files["ca_file"]),
        ("bench-1.crt", files["cert_file"]),
        ("bench-1.key", files["key_file"]),
        ("bench-1", "bench"),
    ):
        assert written in command
        command = command.replace(written, here)
    reads = enter("w-1", f"{wire.LABEL_TOPICS}/json")
    subprocess.run(shlex.split(command.replace("\\\n", "")), check=True)
    topic, payload = reads.get()
    label = decode_label(topic, payload, 0.0)
    assert (label.by, label.device, label.label) == ("bench", "pi-1", "worn")


def test_forbidden_subscriptions_get_no_message(enter):
    for who, topic, writer in FORBIDDEN_SUBSCRIPTIONS:
        own = f"gw/v1/{who}/probe"
        reads = enter(who, topic, own)
        concrete = topic.removeprefix("$share/gw/").replace("+", "pi-2")
        enter(writer).publish(concrete, b"secret")
        enter("boss", concrete)  # the broker has routed the message when it grants this
        reads.publish(own, b"end")
        assert reads.get() == (own, b"end")
        with pytest.raises(queue.Empty):
            reads.get(0.1)


def test_an_oversized_message_ends_the_connection(secure, enter):
    reader = enter("w-1", wire.REQUEST_TOPICS)
    largest = b"x" * wire.MAX_PAYLOAD
    enter("pi-1").publish("gw/v1/pi-1/req", largest)
    assert reader.get() == ("gw/v1/pi-1/req", largest)
    sender = enter("pi-1")
    sender.client.publish("gw/v1/pi-1/req", b"x" * (wire.MAX_PAYLOAD + 1), qos=1)
    secure.wait_for_line(r"Dropped too large PUBLISH from pi-1")
    sender.client.publish("gw/v1/pi-1/req", b"x" * (2 * wire.MAX_PAYLOAD), qos=1)
    secure.wait_for_line(r"Client pi-1 disconnected due to oversize packet")
    enter("pi-2").publish("gw/v1/pi-2/req", b"true")
    assert reader.get() == ("gw/v1/pi-2/req", b"true")


def connect(url, device="pi-1", **files):
    link = MqttLink(url, device=device, **files)
    try:
        link.connect(60)
    finally:
        link.close()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Certificates of the same names from another authority."""
    return make_broker_folder(tmp_path_factory.mktemp("stranger") / "broker")


def test_clients_without_a_certificate_of_the_authority_are_refused(secure, stranger):
    ca = {"ca_file": secure.broker_folder.client_arguments("pi-1")["ca_file"]}
    with pytest.raises(LinkError):
        connect(secure.url, **ca)
    secure.wait_for_line("peer did not return a certificate")
    with pytest.raises(LinkError):
        connect(secure.url, **(stranger.client_arguments("pi-1") | ca))
    secure.wait_for_line("certificate verify failed|unknown ca")
    # a device refuses a broker of another authority
    for files in (stranger.client_arguments("pi-1"), {}):
        with pytest.raises(LinkError, match="certificate verify failed"):
            connect(secure.url, **files)
    assert " as pi-1" not in secure.log


def test_the_certificate_of_the_server_is_refused_for_a_client(secure):
    files = secure.broker_folder.client_arguments("pi-1")
    folder = secure.broker_folder.folder
    files |= {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
    with pytest.raises(LinkError):
        connect(secure.url, **files)
    secure.wait_for_line("unsupported certificate purpose|certificate verify failed")


def test_a_revoked_device_is_refused_and_a_renewed_one_is_not(tmp_path):
    made = make_broker_folder(tmp_path / "broker")
    old = {key: Path(path).read_text() for key, path in made.client_arguments("pi-1").items()}
    again = make_broker_folder(tmp_path / "broker", devices=[], revoke=["pi-2"], renew=["pi-1"])
    assert again.roster.devices == ("pi-1",)
    copies = {}
    for key, text in old.items():
        copies[key] = tmp_path / f"old-{key}"
        copies[key].write_text(text)
    broker = SecureBroker(again)
    try:
        connect(broker.url, **again.client_arguments("pi-1"))
        with pytest.raises(LinkError):
            connect(broker.url, **copies)
        broker.wait_for_line("certificate verify failed|revoked")
    finally:
        broker.close()


def test_a_client_uses_its_renewed_certificate_at_the_next_connection(tmp_path):
    made = make_broker_folder(tmp_path / "broker")
    link = MqttLink(
        f"mqtts://127.0.0.1:{made.roster.port}", device="pi-1", **made.client_arguments("pi-1")
    )
    broker = SecureBroker(made)
    link.open(lambda _: None)
    try:
        link.connect(60)
        broker.close()
        wait_until(lambda: not link.ready, "the end of the connection")
        before = link.certificate_expires
        again = make_broker_folder(made.folder, devices=[], renew=["pi-1"], port=made.roster.port)
        broker = SecureBroker(again)  # refuses the old one
        wait_until(lambda: link.ready, "a connection with the new certificate")
        assert link.certificate_expires >= before
    finally:
        link.close()
        broker.close()
