"""Program of a hostile device.

A JSON document on standard input has ``host``, ``port``, ``url`` and ``bundle``. Until a second
line comes, the device sends 150 requests of 500 rows per second under its own name, and damaged
messages. It also opens connections that send random bytes, and subscribes to the workers' default
pool. At the end it prints the number of each action.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from contextlib import suppress

import numpy as np

from gatewise_edge.link import wire
from gatewise_edge.link.endpoint import Endpoint, make_client
from gatewise_export.bundle.bundle import Bundle

#: Together 75,000 rows per second, far more than the other devices send.
ROWS_PER_REQUEST = 500
REQUESTS_PER_SECOND = 150.0
DEVICE_NAME = "hostile"


def main() -> None:
    job = json.loads(sys.stdin.readline())
    stop_event = threading.Event()
    counts = {"requests": 0, "messages": 0, "connections": 0, "taken": 0}
    threading.Thread(target=lambda: (sys.stdin.readline(), stop_event.set()), daemon=True).start()
    manifest = Bundle.open(job["bundle"]).manifest
    rng = random.Random(0)
    client = make_client(Endpoint(job["url"]), DEVICE_NAME, max_inflight=1000)

    def count_received_request(*_: object) -> None:
        counts["taken"] += 1

    client.on_connect = lambda *_: client.subscribe("$share/gw/gw/v1/+/req", qos=1)
    client.on_message = count_received_request
    with suppress(OSError):
        client.connect(job["host"], job["port"])
    client.loop_start()
    assert manifest.cloud is not None
    X = np.random.default_rng(0).random(
        (ROWS_PER_REQUEST, len(manifest.cloud.inputs)), dtype=np.float32
    )
    topic = wire.request_topic(DEVICE_NAME)
    while not stop_event.wait(1.0 / REQUESTS_PER_SECOND):
        request = wire.Request(
            id=wire.new_id(), model=manifest.name, version=manifest.version, ttl_ms=1000, X=X
        )
        payload = bytearray(wire.encode_request(request))
        client.publish(topic, bytes(payload), qos=0)
        counts["requests"] += 1
        for _ in range(8):  # damaged bits
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        client.publish(topic, bytes(payload[: rng.randrange(len(payload))]), qos=0)
        counts["messages"] += 1
        if counts["requests"] % 15 == 0:  # ten times per second
            with (
                suppress(OSError),
                socket.create_connection((job["host"], job["port"]), 1) as raw_socket,
            ):
                raw_socket.sendall(rng.randbytes(rng.randrange(1, 400)))
            counts["connections"] += 1
    client.loop_stop()
    print(json.dumps({"event": "done"} | counts), flush=True)


if __name__ == "__main__":
    main()
