"""A device without a cloud answers every instance by its deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

import numpy as np
import pytest

from tests.support.waiting import wait_until

DEADLINE_MS = 200.0


@contextlib.contextmanager
def silent_listener():
    """Accept connections without a reply; yields the URL."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


@pytest.mark.slow
def test_every_answer_comes_by_its_deadline(proxied_rig, packed):
    """The three clouds are a closed port, a silent broker, and a broker without workers."""
    rig = proxied_rig
    hard = np.flatnonzero(packed.system.offload(packed.rows))[:60]
    rig.start_broker()
    with silent_listener() as silent:
        brokers = {"refused": "mqtt://127.0.0.1:9", "silent": silent, "no-worker": rig.network.url}
        devices = {
            cloud: rig.start_device(
                cloud, packed.bundle, packed.rows, hard.tolist(), deadline_ms=DEADLINE_MS,
                broker=url, wait_for_link=cloud == "no-worker",
            )
            for cloud, url in brokers.items()
        }  # fmt: skip
        rig.go(devices.values())
        wait_until(lambda: all(device.done for device in devices.values()), "the last answer", 90)
    edge = packed.edge_only()
    for cloud, device in devices.items():
        answers = device.answers(len(hard))
        assert device.late()[1] == []
        assert {a["route"] for a in answers} == {"fallback"}
        assert [a["label"] for a in answers] == edge[hard].tolist()
        reasons = Counter(a["reason"] for a in answers)
        worst = max(a["late_ms"] for a in answers)
        print(f"\n{cloud}: {dict(reasons)}; worst {worst:.1f} ms late")
        assert reasons["timeout" if cloud == "no-worker" else "link-down"] > 0
