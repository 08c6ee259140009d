"""Tests that a device without a cloud answers every instance by its deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

import numpy as np
import pytest

from tests.chaos.conftest import ChaosFleet, RelayNetwork
from tests.support.waiting import wait_until

#: Short, because every answer after a timeout takes this long.
DEADLINE_MS = 200.0


@contextlib.contextmanager
def listen_silently():
    """Accept connections and never send a byte, not even a CONNACK; yield the URL."""
    connections = []  # keeps them open
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept_connections():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])

        threading.Thread(target=accept_connections, daemon=True).start()
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # ends the call of accept, which closing does not
    for connection in connections:
        connection.close()


@pytest.fixture
def fleet(tmp_path):
    """A fleet on this host, where its devices reach the silent broker."""
    fleet = ChaosFleet(RelayNetwork(), tmp_path)
    yield fleet
    fleet.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_answer_comes_by_its_deadline(fleet, feature_system):
    """The devices have no cloud: a closed port, a silent broker, or a broker without workers."""
    # Thirty rows take at most 6 s, even if each answer waits for its deadline.
    hard_rows = np.flatnonzero(feature_system.system.offload(feature_system.rows))[:30]
    fleet.start_broker()
    with listen_silently() as silent_url:
        url_by_cloud = {
            "refused": "mqtt://127.0.0.1:9",  # the port of the discard protocol, which is not used
            "silent": silent_url,
            "no-worker": fleet.network.url,
        }
        # Only the broker without workers accepts an MQTT connection, for which a device can wait.
        device_by_cloud = {
            cloud_name: fleet.start_device(
                cloud_name, feature_system.bundle, feature_system.rows, hard_rows.tolist(),
                deadline_ms=DEADLINE_MS, broker=url, wait_for_link=cloud_name == "no-worker",
            )
            for cloud_name, url in url_by_cloud.items()
        }  # fmt: skip
        fleet.start_answering(device_by_cloud.values())
        wait_until(
            lambda: all(device.is_done for device in device_by_cloud.values()),
            "the last answer",
            180,  # s, far more than 6 s, for a busy machine
        )
    edge_labels = feature_system.compute_edge_labels()
    for cloud_name, device in device_by_cloud.items():
        answers = device.read_answers(len(hard_rows))
        _, unexcused_late_answers = device.split_late_answers()
        assert unexcused_late_answers == []
        assert {answer["route"] for answer in answers} == {"fallback"}
        assert [answer["label"] for answer in answers] == edge_labels[hard_rows].tolist()
        reasons = Counter(answer["reason"] for answer in answers)
        max_late_ms = max(answer["late_ms"] for answer in answers)
        print(f"\n{cloud_name}: {dict(reasons)}; worst {max_late_ms:.1f} ms late")
        # The circuit breaker gives other reasons as well.
        assert reasons["timeout" if cloud_name == "no-worker" else "link-down"] > 0
