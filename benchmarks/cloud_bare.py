"""``python -m benchmarks.cloud_bare PORT``: a paho client that sends every request back as it came.

What a worker of no work at all would take: the floor of its round trip.
"""

from __future__ import annotations

import secrets
import socket
import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_edge.link import wire

__all__ = ["main"]


def main(port: int) -> None:
    """Serve until killed; says ``ready`` once it is subscribed."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"bare-{secrets.token_hex(4)}",
        protocol=paho.MQTTv311,
    )

    def at_once(_client: Any, _userdata: Any, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def take(_client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        device = wire.device_of(message.topic)
        client.publish(wire.response_topic(device), message.payload, qos=1)
        client.loop_write()

    client.on_socket_open = at_once
    client.on_message = take
    client.on_connect = lambda c, *_: c.subscribe(wire.shared("bare"), 1)
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.loop_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
