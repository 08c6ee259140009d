"""Labels that machines publish, taken by a worker with kept instances on a real broker."""

import json
import logging
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gatewise_cloud import Worker
from gatewise_cloud.archive import label_intake
from gatewise_cloud.archive.label_intake import LabelIntake
from gatewise_cloud.archive.label_message import encode_label
from gatewise_cloud.archive.writer import ArchiveWriter
from gatewise_cloud.service.metrics import text_of
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import read_labels
from gatewise_export.archive.machine_labels import machine_rows
from gatewise_export.bundle.bundle import Bundle
from tests.cloud.archive.test_writer import ticket
from tests.support import tiny_bundle as tiny
from tests.support.mqtt_clients import MqttClient
from tests.support.needs import find_program
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def bench(mosquitto):
    client = MqttClient(mosquitto.url, "gw/v1/dead/+")
    yield client
    client.close()


def send(bench, request, device, label, *, row=0, sender="bench-1", **fields):
    payload = encode_label(id=request.id, device=device, label=label, row=row, **fields)
    bench.publish(wire.labels_topic(sender), payload)


def outcomes(worker):
    return worker.counters["labels"]


@pytest.fixture
def keeping(tmp_path, bundle, mosquitto):
    """A worker that keeps instances in tmp_path / "kept", in shards of half a second."""
    with Worker(bundle, mosquitto.url, keep=tmp_path / "kept", keep_seconds=0.5) as worker:
        yield worker


def test_labels_in_cbor_and_json_are_recorded_with_their_sender(
    keeping, tmp_path, mosquitto, caller, bench
):
    """The label of an instance in an open shard waits for the disk."""
    one = caller(mosquitto)
    request = one.ask(tiny.rows(2))
    one.response()
    send(bench, request, one.device, "b", row=1, at=1_700_000_000)
    document = {"id": request.id.hex(), "dev": one.device, "l": "c"}
    bench.publish("gw/v1/repair/labels/json", json.dumps(document).encode())
    wait_until(lambda: outcomes(keeping) == {"added": 2})
    labels = read_labels(tmp_path / "kept")
    second = labels[f"{request.id.hex()}-1"]
    assert (second.label, second.by, second.at) == ("b", "bench-1", 1_700_000_000)
    assert labels[f"{request.id.hex()}-0"].by == "repair"
    rows = machine_rows(tmp_path / "kept", "tiny", "1")
    assert set(rows.truth.tolist()) == {1, 2}
    # a redelivered message, and one that was sent again later
    send(bench, request, one.device, "b", row=1, at=1_700_000_000)
    wait_until(lambda: outcomes(keeping) == {"added": 2, "repeated": 1})
    assert b'gatewise_worker_labels_total{outcome="added"} 2.0' in text_of(keeping)


def test_answers_of_a_device_name_the_instance_to_label(
    keeping, tmp_path, bundle, mosquitto, bench
):
    link = MqttLink(mosquitto.url, device="pi-9")
    with Device(bundle, link=link, policy="cloud-only", deadline_ms=20_000) as device:
        link.connect(60)
        answers = [device.answer(tiny.rows(1)[0]), *device.answer_many(tiny.rows(2, seed=1))]
    assert [answer.route for answer in answers] == ["cloud"] * 3
    assert answers[2].request == f"{answers[1].request}-1"
    for answer, label in zip(answers, "abc", strict=True):
        request, _, row = answer.request.partition("-")
        document = {"id": request, "dev": "pi-9", "l": label, "i": int(row or 0)}
        bench.publish("gw/v1/repair/labels/json", json.dumps(document).encode())
    wait_until(lambda: outcomes(keeping) == {"added": 3})
    labels = read_labels(tmp_path / "kept")
    assert labels[answers[2].request].label == "c"


def test_refused_labels_are_counted_by_reason_and_logged(
    keeping, tmp_path, mosquitto, caller, bench, caplog, monkeypatch
):
    caplog.set_level(logging.WARNING, "gatewise_cloud")
    one = caller(mosquitto)
    hidden = caller(mosquitto)
    request = one.ask(tiny.rows(1))
    private = hidden.ask(tiny.rows(1), private=True)
    one.response()
    hidden.response()
    send(bench, request, one.device, "a")
    wait_until(lambda: outcomes(keeping) == {"added": 1})
    # its instance is on disk, so that no label needs to wait for it
    monkeypatch.setattr(keeping._labels, "_max_wait_seconds", 1.0)
    send(bench, request, one.device, "b")
    send(bench, request, one.device, "broken")
    send(bench, private, hidden.device, "a")
    send(bench, request, hidden.device, "a")
    send(bench, request, "elsewhere", "a")
    expected = {"added": 1, "conflict": 1, "class": 1, "private": 2, "unknown": 1}
    wait_until(lambda: outcomes(keeping) == expected)
    assert len(read_labels(tmp_path / "kept")) == 1
    refusals = [line for line in caplog.messages if "is refused" in line]
    assert len(refusals) == 5
    assert any("already has another label" in line for line in refusals)
    # a message that is no label, and no request either
    bench.publish("gw/v1/bench-1/labels", b"noise")
    assert bench.get() == ("gw/v1/dead/cbor", b"noise")
    assert outcomes(keeping) == expected


def test_a_worker_that_keeps_nothing_reads_no_labels(bundle, mosquitto, caller, bench):
    with Worker(bundle, mosquitto.url) as worker:
        one = caller(mosquitto)
        request = one.ask(tiny.rows(1))
        one.response()
        send(bench, request, one.device, "a")
        one.ask(tiny.rows(1))
        one.response()
        assert (worker.counters["received"], outcomes(worker)) == (2, {})


def test_several_connections_take_each_label_once(tmp_path, bundle, mosquitto, caller, bench):
    with Worker(
        bundle, mosquitto.url, keep=tmp_path / "kept", keep_seconds=0.2, connections=3
    ) as worker:
        one = caller(mosquitto)
        request = one.ask(tiny.rows(1))
        one.response()
        send(bench, request, one.device, "a")
        wait_until(lambda: outcomes(worker) == {"added": 1})


def test_the_command_in_the_docs_labels_an_instance(keeping, tmp_path, mosquitto, caller):
    """The lines of docs/wire.md, with an instance of this broker."""
    program = find_program("mosquitto_pub", "apt install mosquitto-clients")
    text = (DOCS / "wire.md").read_text()
    (command,) = re.findall(r"```sh\n(mosquitto_pub .*?)\n```", text, re.DOTALL)
    one = caller(mosquitto)
    request = one.ask(tiny.rows(1))
    one.response()
    for written, here in (
        ("mosquitto_pub", f"{program} -p {mosquitto.port}"),
        ("00112233445566778899aabbccddeeff", request.id.hex()),
        ("pi-1", one.device),
        ("worn", "a"),
    ):
        assert written in command
        command = command.replace(written, here, 1)
    subprocess.run(shlex.split(command.replace("\\\n", "")), check=True)
    wait_until(lambda: outcomes(keeping) == {"added": 1})
    assert read_labels(tmp_path / "kept")[f"{request.id.hex()}-0"].by == "bench-1"


def test_labels_beyond_the_limit_are_refused_and_the_others_wait(tmp_path, bundle, monkeypatch):
    """Without the disk's thread the queue fills; closing refuses labels without an instance."""
    monkeypatch.setattr(label_intake, "MAX_WAITING", 3)
    rng = np.random.default_rng(0)
    folder = ArchiveFolder(tmp_path, max_bytes=1e9, max_days=30, rng=rng)
    writer = ArchiveWriter(folder, seconds=60.0, rng=rng)
    counters = Counters()
    intake = LabelIntake(writer, counters, lambda reason, payload: None, seconds=60.0)
    manifest = Bundle.open(bundle).manifest
    requests = [wire.new_id() for _ in range(4)]
    for request in requests[:2]:
        one = ticket(1, id=request)
        writer.offer(one, manifest, np.zeros(1, np.int64), np.full((1, 3), 1 / 3, np.float32))
    for request in requests:
        payload = encode_label(id=request, device="pi", label="a")
        intake.receive(wire.labels_topic("bench-1"), payload)
    assert counters.snapshot()["labels"] == {"full": 1}
    writer.start()
    intake.start()
    writer.close()
    intake.close()
    assert counters.snapshot()["labels"] == {"full": 1, "added": 2, "unknown": 1}
    assert set(read_labels(tmp_path)) == {f"{request.hex()}-0" for request in requests[:2]}


def test_an_archive_that_cannot_be_written_delays_labels_and_loses_none(
    tmp_path, bundle, mosquitto, caller, bench, monkeypatch
):
    attempts = []

    def fail_once(*arguments):
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("no space left on the device")
        return add(*arguments)

    add = label_intake.add_machine_labels
    monkeypatch.setattr(label_intake, "add_machine_labels", fail_once)
    with Worker(bundle, mosquitto.url, keep=tmp_path / "kept", keep_seconds=0.2) as worker:
        one = caller(mosquitto)
        request = one.ask(tiny.rows(1))
        one.response()
        send(bench, request, one.device, "a")
        wait_until(lambda: outcomes(worker) == {"added": 1})
