"""Labels that machines publish, recorded by a worker with an archive on a real broker."""

import json
import logging
import queue
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
import pytest

from gatewise_cloud import Worker
from gatewise_cloud.archive import label_intake
from gatewise_cloud.archive.label_intake import LabelIntake
from gatewise_cloud.archive.writer import ArchiveWriter
from gatewise_cloud.service.metrics import metrics_text
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import read_labels
from gatewise_export.archive.machine_labels import read_machine_rows
from gatewise_export.bundle.bundle import Bundle
from tests.cloud.archive.test_label_message import encode_as_cbor
from tests.cloud.archive.test_writer import make_ticket
from tests.support import tiny_bundle as tiny
from tests.support.mqtt_clients import MqttClient
from tests.support.needs import find_program
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def bench_client(mosquitto):
    """A client of a test bench, which sends labels and reads dead letters."""
    client = MqttClient(mosquitto.url, "gw/v1/dead/+")
    yield client
    client.close()


def send_label(bench_client, request, device, label, *, row=0, sender="bench-1", **fields):
    payload = encode_as_cbor(id=request.id, dev=device, l=label, i=row, **fields)
    bench_client.publish(f"gw/v1/{sender}/labels", payload)


def count_outcomes(worker):
    """Number of labels by what the worker has done with them."""
    return worker.counters["labels"]


@pytest.fixture
def archiving_worker(tmp_path, bundle, mosquitto):
    """A worker that archives instances in tmp_path / "kept" and closes shards after 0.5 s.

    Its connections share the labels, so that it records each once.
    """
    options = {"keep": tmp_path / "kept", "keep_seconds": 0.5, "connections": 3}
    with Worker(bundle, mosquitto.url, **options) as worker:
        yield worker


@pytest.mark.slow
def test_labels_in_cbor_and_json_are_recorded_with_their_sender(
    archiving_worker, tmp_path, mosquitto, connect_caller, bench_client
):
    """The label of an instance in an open shard waits for the disk."""
    client = connect_caller(mosquitto)
    request = client.ask(tiny.random_rows(2))
    client.response()
    send_label(bench_client, request, client.device, "b", row=1, at=1_700_000_000)
    document = {"id": request.id.hex(), "dev": client.device, "l": "c"}
    bench_client.publish("gw/v1/repair/labels/json", json.dumps(document).encode())
    wait_until(lambda: count_outcomes(archiving_worker) == {"added": 2})
    labels = read_labels(tmp_path / "kept")
    label_of_second_row = labels[f"{request.id.hex()}-1"]
    assert (label_of_second_row.label, label_of_second_row.by) == ("b", "bench-1")
    assert label_of_second_row.at == 1_700_000_000
    assert labels[f"{request.id.hex()}-0"].by == "repair"
    rows = read_machine_rows(tmp_path / "kept", ("tiny", "1"))
    assert set(rows.truth.tolist()) == {1, 2}
    # the broker may deliver a message twice
    send_label(bench_client, request, client.device, "b", row=1, at=1_700_000_000)
    wait_until(lambda: count_outcomes(archiving_worker) == {"added": 2, "repeated": 1})
    assert b'gatewise_worker_labels_total{outcome="added"} 2.0' in metrics_text(archiving_worker)


@pytest.mark.slow
def test_answers_of_a_device_name_the_instance_to_label(
    archiving_worker, tmp_path, bundle, mosquitto, bench_client
):
    link = MqttLink(mosquitto.url, device="pi-9")
    with Device(bundle, link=link, policy="cloud-only", deadline_ms=20_000) as device:
        link.connect(60)
        answers = [
            device.answer(tiny.random_rows(1)[0]),
            *device.answer_many(tiny.random_rows(2, seed=1)),
        ]
    assert [answer.route for answer in answers] == ["cloud"] * 3
    assert answers[2].request == f"{answers[1].request}-1"
    for answer, label in zip(answers, "abc", strict=True):
        request_id, _, row = answer.request.partition("-")  # a request of one row has no "-"
        document = {"id": request_id, "dev": "pi-9", "l": label, "i": int(row or 0)}
        bench_client.publish("gw/v1/repair/labels/json", json.dumps(document).encode())
    wait_until(lambda: count_outcomes(archiving_worker) == {"added": 3})
    labels = read_labels(tmp_path / "kept")
    assert labels[answers[2].request].label == "c"


@pytest.mark.slow
def test_refused_labels_are_counted_by_reason_and_logged(
    archiving_worker, tmp_path, mosquitto, connect_caller, bench_client, caplog, monkeypatch
):
    caplog.set_level(logging.WARNING, "gatewise_cloud")
    client = connect_caller(mosquitto)
    private_client = connect_caller(mosquitto)
    request = client.ask(tiny.random_rows(1))
    private_request = private_client.ask(tiny.random_rows(1), is_private=True)
    client.response()
    private_client.response()
    send_label(bench_client, request, client.device, "a")
    wait_until(lambda: count_outcomes(archiving_worker) == {"added": 1})
    # the instance is on disk, so that labels need not wait for it
    monkeypatch.setattr(archiving_worker._label_intake, "_max_wait_seconds", 1.0)
    send_label(bench_client, request, client.device, "b")
    send_label(bench_client, request, client.device, "broken")
    send_label(bench_client, private_request, private_client.device, "a")
    send_label(bench_client, request, private_client.device, "a")
    send_label(bench_client, request, "elsewhere", "a")
    expected_outcomes = {"added": 1, "conflict": 1, "class": 1, "private": 2, "unknown": 1}
    wait_until(lambda: count_outcomes(archiving_worker) == expected_outcomes)
    assert len(read_labels(tmp_path / "kept")) == 1
    refusals = [message for message in caplog.messages if "is refused" in message]
    assert len(refusals) == 5
    assert any("already has another label" in message for message in refusals)
    # a message that is neither a label nor a request
    bench_client.publish("gw/v1/bench-1/labels", b"noise")
    assert bench_client.get() == ("gw/v1/dead/cbor", b"noise")
    assert count_outcomes(archiving_worker) == expected_outcomes


def test_a_worker_without_an_archive_reads_no_labels(
    bundle, mosquitto, connect_caller, bench_client
):
    with Worker(bundle, mosquitto.url) as worker:
        client = connect_caller(mosquitto)
        request = client.ask(tiny.random_rows(1))
        client.response()
        send_label(bench_client, request, client.device, "a")
        client.ask(tiny.random_rows(1))
        client.response()
        assert (worker.counters["received"], count_outcomes(worker)) == (2, {})


@pytest.mark.slow
def test_the_command_in_the_docs_labels_an_instance(
    archiving_worker, tmp_path, mosquitto, connect_caller
):
    """Run the command of docs/wire.md with the id of a real instance."""
    program = find_program("mosquitto_pub", "apt install mosquitto-clients")
    wire_page = (DOCS / "wire.md").read_text()
    (command,) = re.findall(r"```sh\n(mosquitto_pub .*?)\n```", wire_page, re.DOTALL)
    client = connect_caller(mosquitto)
    request = client.ask(tiny.random_rows(1))
    client.response()
    for placeholder, replacement in (
        ("mosquitto_pub", f"{program} -p {mosquitto.port}"),
        ("00112233445566778899aabbccddeeff", request.id.hex()),
        ("pi-1", client.device),
        ("worn", "a"),
    ):
        assert placeholder in command
        command = command.replace(placeholder, replacement, 1)
    subprocess.run(shlex.split(command.replace("\\\n", "")), check=True)
    wait_until(lambda: count_outcomes(archiving_worker) == {"added": 1})
    assert read_labels(tmp_path / "kept")[f"{request.id.hex()}-0"].by == "bench-1"


def test_the_broker_tells_the_sender_that_no_worker_is_there(bundle, tmp_path, mosquitto):
    acknowledged = queue.Queue()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_publish = lambda client, userdata, mid, code, properties: acknowledged.put(code.value)
    client.connect("127.0.0.1", mosquitto.port)
    client.loop_start()

    def publish_label():
        payload = encode_as_cbor(id=bytes(16), l="a")
        client.publish("gw/v1/bench-1/labels", payload, qos=1)
        return acknowledged.get(timeout=30)

    assert publish_label() == 16  # MQTT 5.0, section 3.4.2.1: no matching subscribers
    with Worker(bundle, mosquitto.url, keep=tmp_path / "kept"):
        assert publish_label() == 0
    client.disconnect()
    client.loop_stop()


def test_labels_beyond_the_limit_are_refused_and_the_others_wait(tmp_path, bundle, monkeypatch):
    """The queue fills before the thread starts; `close` refuses labels without an instance."""
    monkeypatch.setattr(label_intake, "MAX_WAITING_LABELS", 3)
    rng = np.random.default_rng(0)
    folder = ArchiveFolder(tmp_path, max_bytes=1e9, max_days=30, rng=rng)
    writer = ArchiveWriter(folder, shard_seconds=60.0, rng=rng)
    counters = Counters()
    intake = LabelIntake(writer, counters, lambda reason, payload: None, shard_seconds=60.0)
    manifest = Bundle.open(bundle).manifest
    request_ids = [wire.new_id() for _ in range(4)]
    for request_id in request_ids[:2]:
        answered_ticket = make_ticket(1, id=request_id)
        writer.archive(
            answered_ticket, manifest, np.zeros(1, np.int64), np.full((1, 3), 1 / 3, np.float32)
        )
    for request_id in request_ids:
        payload = encode_as_cbor(id=request_id, dev="pi", l="a")
        intake.receive("gw/v1/bench-1/labels", payload)
    assert counters.snapshot()["labels"] == {"full": 1}
    writer.start()
    intake.start()
    writer.close()
    intake.close()
    assert counters.snapshot()["labels"] == {"full": 1, "added": 2, "unknown": 1}
    assert set(read_labels(tmp_path)) == {f"{request_id.hex()}-0" for request_id in request_ids[:2]}


@pytest.mark.slow
def test_a_failed_write_delays_labels_and_loses_none(
    tmp_path, bundle, mosquitto, connect_caller, bench_client, monkeypatch
):
    n_attempts = 0

    def add_or_fail_once(*arguments):
        nonlocal n_attempts
        n_attempts += 1
        if n_attempts == 1:
            raise OSError("no space left on the device")
        return add_labels(*arguments)

    add_labels = label_intake.add_machine_labels
    monkeypatch.setattr(label_intake, "add_machine_labels", add_or_fail_once)
    with Worker(bundle, mosquitto.url, keep=tmp_path / "kept", keep_seconds=0.2) as worker:
        client = connect_caller(mosquitto)
        request = client.ask(tiny.random_rows(1))
        client.response()
        send_label(bench_client, request, client.device, "a")
        wait_until(lambda: count_outcomes(worker) == {"added": 1})
