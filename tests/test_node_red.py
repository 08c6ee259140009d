"""Test of examples/node-red/flow.json in a real Node-RED."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gatewise_cloud import MosquittoBroker, Worker
from tests.support import tiny_bundle
from tests.support.mqtt_clients import MqttClient
from tests.support.needs import install_from_npm
from tests.support.ports import free_port
from tests.support.processes import restore_default_signals
from tests.support.waiting import holds_within, wait_until

FLOW_FILE = Path(__file__).parents[1] / "examples" / "node-red" / "flow.json"


def find_node_red(folder: Path) -> str:
    """Find Node-RED, or install it in the folder if GATEWISE_NODE_RED is 1."""
    program = shutil.which("node-red")
    if program is not None:
        return program
    if os.environ.get("GATEWISE_NODE_RED") != "1":
        pytest.skip("node-red is not installed: make test-node-red gets it from npm")
    if shutil.which("npm") is None:
        pytest.skip("npm, which installs node-red, is not installed")
    install_from_npm(folder, "node-red@4")
    return str(folder / "node_modules" / ".bin" / "node-red")


@pytest.mark.slow
def test_flow_gets_the_answers_of_the_high_cost_model(tmp_path):
    program = find_node_red(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(FLOW_FILE, home / "flow.json")
    bundle = tiny_bundle.write_bundle(tmp_path / "bundle")
    rows = tiny_bundle.random_rows(20)
    labels, probabilities = tiny_bundle.cloud_answers(rows)
    with MosquittoBroker() as broker, Worker(bundle, broker.url):
        client = MqttClient(broker.url, "sensors/answers")
        log_path = tmp_path / "log"
        with log_path.open("wb") as log_file:
            process = subprocess.Popen(
                [program, "-u", home, "-p", str(free_port()), "flow.json"],
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {"GATEWISE_BROKER_HOST": "127.0.0.1", "GATEWISE_BROKER_PORT": str(broker.port)},
                preexec_fn=restore_default_signals,  # noqa: PLW1509  no thread holds a lock here
            )
        try:
            wait_until(lambda: "Connected to broker" in log_path.read_text(), "Node-RED", 120.0)

            def list_answers():
                return [json.loads(payload) for _, payload, _ in list(client.messages)]

            def ask(row, is_expected):
                """Publish a row repeatedly, because the flow may subscribe late."""

                def has_answer():
                    return any(is_expected(answer) for answer in list_answers())

                def publish_and_wait():
                    if has_answer():
                        return True
                    client.client.publish("sensors/rows", json.dumps(row.tolist()), qos=1)
                    return holds_within(has_answer, 5.0)  # s, then once more

                wait_until(publish_and_wait, "the expected answer")

            for row, label, row_probabilities in zip(rows, labels, probabilities, strict=True):
                # the wire carries 32-bit probabilities
                confidence = pytest.approx(row_probabilities.max(), abs=1e-5)
                expected_fields = (label, confidence)
                ask(
                    row,
                    lambda answer, expected_fields=expected_fields: (
                        (answer.get("label"), answer.get("confidence")) == expected_fields
                    ),
                )
            assert not [answer for answer in list_answers() if "error" in answer]
            ask(rows[0][:2], lambda answer: answer.get("error") == "bad-request")
        except AssertionError:
            print(log_path.read_text()[-4000:])  # the last lines
            raise
        finally:
            process.terminate()
            process.wait(30)  # seconds, for a busy machine
            client.close()
