"""examples/node-red/flow.json in a real Node-RED: rows in, the high-cost model's answers out."""

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
from tests.support.ports import free_port
from tests.support.processes import default_signals
from tests.support.waiting import holds_within, wait_until

FLOW = Path(__file__).parents[1] / "examples" / "node-red" / "flow.json"


def node_red(folder: Path) -> str:
    """The program; installed in the folder if GATEWISE_NODE_RED=1 asks for it."""
    found = shutil.which("node-red")
    if found is not None:
        return found
    if os.environ.get("GATEWISE_NODE_RED") != "1":
        pytest.skip("node-red is not installed: make test-node-red gets it from npm")
    if shutil.which("npm") is None:
        pytest.skip("no npm here, which would install node-red")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "node-red@4"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm does not install node-red here: {done.stderr.strip()[-120:]}")
    return str(folder / "node_modules" / ".bin" / "node-red")


@pytest.mark.slow
def test_the_flow_gets_the_answers_of_the_high_cost_model(tmp_path):
    program = node_red(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(FLOW, home / "flow.json")
    bundle = tiny_bundle.write_bundle(tmp_path / "bundle")
    rows = tiny_bundle.rows(20)
    labels, probabilities = tiny_bundle.expected(rows)
    with MosquittoBroker() as broker, Worker(bundle, broker.url):
        client = MqttClient(broker.url, "sensors/answers")
        log = tmp_path / "log"
        with log.open("wb") as told:
            process = subprocess.Popen(
                [program, "-u", home, "-p", str(free_port()), "flow.json"],
                stdout=told,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {
                    "GATEWISE_BROKER_HOST": "127.0.0.1",
                    "GATEWISE_BROKER_PORT": str(broker.port),
                },
                preexec_fn=default_signals,  # noqa: PLW1509  no thread of ours holds a lock here
            )
        try:
            wait_until(lambda: "Connected to broker" in log.read_text(), "Node-RED", 120.0)

            def answers():
                return [json.loads(payload) for _, payload, _ in list(client.got)]

            def ask(row, right):
                """Publish a row until an answer is right: the flow may not have subscribed yet."""

                def asked():
                    if right_ones():
                        return True
                    client.client.publish("sensors/rows", json.dumps(row.tolist()), qos=1)
                    return holds_within(right_ones, 5.0)

                def right_ones():
                    return [answer for answer in answers() if right(answer)]

                wait_until(asked, "the right answer")

            for row, label, p in zip(rows, labels, probabilities, strict=True):
                confidence = pytest.approx(p.max(), abs=1e-5)
                ask(
                    row,
                    lambda a, y=label, c=confidence: (
                        (a.get("label"), a.get("confidence")) == (y, c)
                    ),
                )
            assert not [answer for answer in answers() if "error" in answer]
            ask(rows[0][:2], lambda a: a.get("error") == "bad-request")
        except AssertionError:
            print(log.read_text()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(30)
            client.close()
