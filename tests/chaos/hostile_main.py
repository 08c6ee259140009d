"""A device whose owner means harm, on the devices' side of the network.

One JSON document on standard input says where: ``host``, ``port``, ``bundle``. Until a second
line comes it sends, under its own name, requests of 500 rows at 150 a second and messages that are
no requests; it opens connections that send bytes which are no MQTT; it subscribes to the workers'
usual pool. At last it prints how often it did each.
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
from gatewise_edge.link.broker_url import Endpoint, make_client
from gatewise_export.bundle.bundle import Bundle

ROWS, RATE = 500, 150.0
NAME = "hostile"


def main() -> None:
    job = json.loads(sys.stdin.readline())
    over, done = threading.Event(), {"requests": 0, "messages": 0, "connections": 0, "taken": 0}
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    manifest = Bundle.open(job["bundle"]).manifest
    rng = random.Random(0)
    client = make_client(Endpoint(job["url"]), NAME, max_inflight=1000)

    def taken(*_: object) -> None:
        done["taken"] += 1

    client.on_connect = lambda *_: client.subscribe("$share/gw/gw/v1/+/req", qos=1)
    client.on_message = taken
    with suppress(OSError):
        client.connect(job["host"], job["port"])
    client.loop_start()
    assert manifest.cloud is not None
    X = np.random.default_rng(0).random((ROWS, len(manifest.cloud.inputs)), dtype=np.float32)
    topic = wire.request_topic(NAME)
    while not over.wait(1.0 / RATE):
        request = wire.Request(
            id=wire.new_id(), model=manifest.name, version=manifest.version, ttl_ms=1000, X=X
        )
        payload = bytearray(wire.encode_request(request))
        client.publish(topic, bytes(payload), qos=0)
        done["requests"] += 1
        for _ in range(8):
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        client.publish(topic, bytes(payload[: rng.randrange(len(payload))]), qos=0)
        done["messages"] += 1
        if done["requests"] % 15 == 0:
            with suppress(OSError), socket.create_connection((job["host"], job["port"]), 1) as raw:
                raw.sendall(rng.randbytes(rng.randrange(1, 400)))
            done["connections"] += 1
    client.loop_stop()
    print(json.dumps({"event": "done"} | done), flush=True)


if __name__ == "__main__":
    main()
