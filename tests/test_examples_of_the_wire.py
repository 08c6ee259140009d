"""Tests that the example clients in C and JavaScript get the same answers as Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.c99.compiled import compiler_command
from gatewise_cloud import MosquittoBroker, Worker
from tests.support import tiny_bundle
from tests.support.mqtt_clients import DeviceClient
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


def test_javascript_client_gets_the_same_answers(broker, python_answers, tmp_path):
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    probe_code = "process.exit(typeof require('zlib').crc32 === 'function' ? 0 : 1)"
    if subprocess.run(["node", "-e", probe_code], check=False).returncode:
        pytest.skip("this version of node has no zlib.crc32 (20.15 has it)")
    install_from_npm(tmp_path, "mqtt@5", "cbor-x@1")
    shutil.copy(EXAMPLES / "device.mjs", tmp_path)
    # The last row has too few values.
    stdin_text = "\n".join([*(json.dumps(row.tolist()) for row in ROWS), "[1, 2]"])
    command = ["node", tmp_path / "device.mjs", broker.url, "js", "tiny", "1"]
    *answers, last_answer = [json.loads(line) for line in run_lines(command, stdin_text)]
    labels, probabilities = python_answers
    assert [answer["label"] for answer in answers] == labels
    np.testing.assert_array_equal(
        np.array([answer["p"] for answer in answers], np.float32), probabilities
    )
    assert last_answer["error"] == "bad-request"


def test_c_client_gets_the_same_answers(broker, python_answers, tmp_path):
    if compiler_command() is None:
        pytest.skip("no C compiler is installed (cc, gcc or clang)")
    command = [*compiler_command(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    probe = subprocess.run(
        [*command, "-E", "-"], input="#include <mosquitto.h>\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("mosquitto.h is not installed (apt install libmosquitto-dev)")
    run_lines([*command, EXAMPLES / "device.c", "-lmosquitto", "-o", tmp_path / "device"], "")
    stdin_text = "\n".join(
        [*(" ".join(repr(float(cell)) for cell in row) for row in ROWS), "1 2", ""]
    )
    port = broker.url.rpartition(":")[2]
    client_command = [tmp_path / "device", "127.0.0.1", port, "c", "tiny", "1"]
    *answers, last_answer = [line.split() for line in run_lines(client_command, stdin_text)]
    labels, probabilities = python_answers
    assert [int(answer[0]) for answer in answers] == labels
    np.testing.assert_array_equal(
        np.array([answer[1:] for answer in answers], np.float32), probabilities
    )
    assert last_answer == ["error", "bad-request"]
