"""Tests that a device without a cloud answers every instance by its deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

import numpy as np
import pytest

from tests.support.waiting import wait_until

#: Short, because every answer of the silent broker takes as long.
DEADLINE_MS = 200.0


@contextlib.contextmanager
def listen_silently():
    """Accept connections without a reply; yield the URL."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept_connections():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])

        threading.Thread(target=accept_connections, daemon=True).start()
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


@pytest.mark.slow
def test_every_answer_comes_by_its_deadline(proxied_fleet, feature_system):
    """The three clouds are a closed port, a silent broker, and a broker without workers."""
    fleet = proxied_fleet
    hard_rows = np.flatnonzero(feature_system.system.offload(feature_system.rows))[:60]
    fleet.start_broker()
    with listen_silently() as silent_url:
        brokers = {
            "refused": "mqtt://127.0.0.1:9",  # the port of the discard protocol
            "silent": silent_url,
            "no-worker": fleet.network.url,
        }
        devices = {
            cloud_name: fleet.start_device(
                cloud_name, feature_system.bundle, feature_system.rows, hard_rows.tolist(),
                deadline_ms=DEADLINE_MS, broker=url, wait_for_link=cloud_name == "no-worker",
            )
            for cloud_name, url in brokers.items()
        }  # fmt: skip
        fleet.start_answering(devices.values())
        wait_until(
            lambda: all(device.is_done for device in devices.values()), "the last answer", 90
        )
    edge_labels = feature_system.compute_edge_labels()
    for cloud_name, device in devices.items():
        answers = device.read_answers(len(hard_rows))
        assert device.split_late_answers()[1] == []
        assert {answer["route"] for answer in answers} == {"fallback"}
        assert [answer["label"] for answer in answers] == edge_labels[hard_rows].tolist()
        reasons = Counter(answer["reason"] for answer in answers)
        max_late_ms = max(answer["late_ms"] for answer in answers)
        print(f"\n{cloud_name}: {dict(reasons)}; worst {max_late_ms:.1f} ms late")
        assert reasons["timeout" if cloud_name == "no-worker" else "link-down"] > 0
