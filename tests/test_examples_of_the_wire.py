"""Tests that the example clients in C and JavaScript get the same answers as Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

from benchmarks.c99.compiled import compiler_command
from gatewise_cloud import MosquittoBroker, Worker
from tests.support import tiny_bundle
from tests.support.mqtt_clients import DeviceClient, MqttClient
from tests.support.needs import install_from_npm

EXAMPLES = Path(__file__).parents[1] / "examples"
ROWS = tiny_bundle.random_rows(40)

# The tests need processes, a broker, a compiler and a package registry.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    """Broker with a worker that serves the tiny bundle."""
    bundle = tiny_bundle.write_bundle(tmp_path_factory.mktemp("tiny") / "bundle")
    with MosquittoBroker() as broker, Worker(bundle, broker.url):
        yield broker


@pytest.fixture(scope="module")
def python_answers(broker: MosquittoBroker) -> tuple[list[int], Any]:
    """Labels and probabilities that a Python client gets for each row."""
    device_client = DeviceClient(broker.url, "python")
    answers = []
    for row in ROWS:
        device_client.ask(row[None])
        answers.append(device_client.response())
    device_client.close()
    probabilities = np.concatenate([answer.probabilities for answer in answers])
    return [int(answer.labels[0]) for answer in answers], probabilities


def run_lines(command: list[Any], stdin_text: str) -> list[str]:
    """Run a command with `stdin_text` as its input; return the lines of its output."""
    process = subprocess.run(
        [str(part) for part in command],
        input=stdin_text,
        capture_output=True,
        text=True,
        timeout=120,  # seconds, for a compiler or a client on a busy machine
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.fixture(scope="module")
def javascript_client(tmp_path_factory) -> list[Any]:
    """Command of the client in JavaScript, with its libraries."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    probe_code = "process.exit(typeof require('zlib').crc32 === 'function' ? 0 : 1)"
    if subprocess.run(["node", "-e", probe_code], check=False).returncode:
        pytest.skip("this version of node has no zlib.crc32 (20.15 has it)")
    folder = tmp_path_factory.mktemp("javascript")
    install_from_npm(folder, "mqtt@5", "cbor-x@1")
    shutil.copy(EXAMPLES / "device.mjs", folder)
    return ["node", folder / "device.mjs"]


@pytest.fixture(scope="module")
def c_client(tmp_path_factory) -> list[Any]:
    """Command of the client in C, which ends at a read beyond a buffer if the compiler can."""
    if compiler_command() is None:
        pytest.skip("no C compiler is installed (cc, gcc or clang)")
    command = [*compiler_command(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    probe = subprocess.run(
        [*command, "-E", "-"], input="#include <mosquitto.h>\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("mosquitto.h is not installed (apt install libmosquitto-dev)")
    program = tmp_path_factory.mktemp("c") / "device"
    command += [EXAMPLES / "device.c", "-lmosquitto", "-o", program]
    if subprocess.run([*command, "-fsanitize=address"], capture_output=True).returncode:
        run_lines(command, "")
    return [program]


def test_javascript_client_gets_the_same_answers(broker, python_answers, javascript_client):
    # The last row has too few values.
    stdin_text = "\n".join([*(json.dumps(row.tolist()) for row in ROWS), "[1, 2]"])
    command = [*javascript_client, broker.url, "js", "tiny", "1"]
    *answers, last_answer = [json.loads(line) for line in run_lines(command, stdin_text)]
    labels, probabilities = python_answers
    assert [answer["label"] for answer in answers] == labels
    np.testing.assert_array_equal(
        np.array([answer["p"] for answer in answers], np.float32), probabilities
    )
    assert last_answer["error"] == "bad-request"


def test_c_client_gets_the_same_answers(broker, python_answers, c_client):
    stdin_text = "\n".join(
        [*(" ".join(repr(float(cell)) for cell in row) for row in ROWS), "1 2", ""]
    )
    port = broker.url.rpartition(":")[2]
    client_command = [*c_client, "127.0.0.1", port, "c", "tiny", "1"]
    *answers, last_answer = [line.split() for line in run_lines(client_command, stdin_text)]
    labels, probabilities = python_answers
    assert [int(answer[0]) for answer in answers] == labels
    np.testing.assert_array_equal(
        np.array([answer[1:] for answer in answers], np.float32), probabilities
    )
    assert last_answer == ["error", "bad-request"]


def encode_message(entries: dict[str, Any]) -> bytes:
    """Encode entries with their checksum; they need not be a response."""
    message = cbor2.dumps(entries | {"crc": bytes(4)})[:-4]
    return message + zlib.crc32(message).to_bytes(4, "big")


def run_past_malformed_responses(
    command: list[Any], url: str, row_text: str
) -> tuple[list[float], str]:
    """Respond to the request for a row with malformed messages, then with an answer of class 1.

    Return the values of the request, and what the client prints.
    """
    worker = MqttClient(url, "gw/v1/lone/req")
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        process.stdin.write(row_text + "\n")
        process.stdin.flush()
        _, request = worker.get()
        entries = cbor2.loads(request)
        request_id, row = entries["id"], np.frombuffer(entries["x"].value, "<f4")
        labels, probabilities = b"\1\0", np.array([0.25, 0.75], "<f4").tobytes()
        answer = {
            "v": 1, "id": request_id, "m": "tiny", "mv": "1", "n": 1, "c": 2, "us": 1,
            "y": cbor2.CBORTag(69, labels), "p": cbor2.CBORTag(85, probabilities),
        }  # fmt: skip
        responses = [b"", b"noise", encode_message({}), encode_message({"id": 16})]
        for key, value in (("id", None), ("y", 2), ("y", b""), ("p", 30_000), ("p", None)):
            responses.append(encode_message(answer | {key: value}))
        # an error code that is no text does not make a refusal
        responses.append(encode_message({"id": request_id, "e": 5}))
        responses.append(encode_message({"new": -1, "other": None, "more": 0.5} | answer))
        for response in responses:
            worker.publish("gw/v1/lone/rsp", response)
        printed, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return row.tolist(), printed
    finally:
        process.kill()
        worker.close()


@pytest.fixture
def lone_broker() -> Iterator[MosquittoBroker]:
    """Broker without a worker."""
    with MosquittoBroker() as broker:
        yield broker


def test_c_client_ignores_malformed_responses(lone_broker, c_client):
    command = [*c_client, "127.0.0.1", lone_broker.port, "lone", "tiny", "1"]
    row, printed = run_past_malformed_responses(command, lone_broker.url, "1 2 3")
    assert row == [1, 2, 3]
    assert printed == "1 0.25 0.75\n"


def test_javascript_client_ignores_malformed_responses(lone_broker, javascript_client):
    command = [*javascript_client, lone_broker.url, "lone", "tiny", "1"]
    row, printed = run_past_malformed_responses(command, lone_broker.url, "[1, null, 3]")
    np.testing.assert_array_equal(row, [1, np.nan, 3])
    assert json.loads(printed) == {"label": 1, "p": [0.25, 0.75]}


def test_javascript_client_sends_no_old_request_after_an_outage(javascript_client):
    with MosquittoBroker() as broker:
        command = [*javascript_client, broker.url, "lone", "tiny", "1"]
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        watcher = MqttClient(broker.url, "gw/v1/lone/status")
        assert watcher.get() == ("gw/v1/lone/status", b"online tiny/1")
        watcher.close()
        broker.kill()
    try:
        process.stdin.write("[1, 2, 3]\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"fallback": True}
        with MosquittoBroker(broker.port) as broker:
            watcher = MqttClient(broker.url, "gw/v1/lone/+")
            assert watcher.get() == ("gw/v1/lone/status", b"online tiny/1")
            process.communicate(timeout=30)  # ends its input
            assert watcher.get() == ("gw/v1/lone/status", b"offline")
            assert all(topic.endswith("status") for topic, _, _ in watcher.messages)
            watcher.close()
    finally:
        process.kill()
