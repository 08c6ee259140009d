"""No cloud at all, refused or silent: the device answers by itself, by each deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

import numpy as np
import pytest

DEADLINE_MS = 200.0


@contextlib.contextmanager
def silent_listener():
    """Take every connection and say nothing."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(door.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"mqtt://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["refused", "silent", "no-worker"])
def test_every_answer_comes_by_its_deadline(cloud, proxied_rig, packed, until):
    rig = proxied_rig
    hard = np.flatnonzero(packed.system.offload(packed.rows))[:60]
    with contextlib.ExitStack() as stack:
        options = {"wait_for_link": False}
        if cloud == "silent":
            options["broker"] = stack.enter_context(silent_listener())
        elif cloud == "refused":
            options["broker"] = f"mqtt://127.0.0.1:{rig.network.port}"
        else:
            rig.start_broker()
            options = {"wait_for_link": True}
        device = rig.start_device(
            "pi-1", packed.bundle, packed.rows, hard.tolist(), deadline_ms=DEADLINE_MS, **options
        )
        until(lambda: device.ready, 60, "the device")
        device.go()
        until(lambda: device.done, 90, "the last answer")
    answers = device.heard("answer")
    assert [a["number"] for a in answers] == list(range(len(hard)))
    assert device.late()[1] == []
    assert {a["route"] for a in answers} == {"fallback"}
    edge = packed.edge_only()
    assert [a["label"] for a in answers] == edge[hard].tolist()
    reasons = Counter(a["reason"] for a in answers)
    print(f"\n{cloud}: {dict(reasons)}; worst {max(a['late_ms'] for a in answers):.1f} ms late")
    assert reasons["timeout" if cloud == "no-worker" else "link-down"] > 0
