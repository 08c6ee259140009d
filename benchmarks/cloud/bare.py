"""Responder that returns every request unchanged: ``python -m benchmarks.cloud.bare PORT``.

Its round trip is a lower bound for the round trip of a worker.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import paho.mqtt.client as paho

from benchmarks.cloud.load import paho_client
from gatewise_edge.link import wire


def main(port: int) -> None:
    """Serve until killed; print ``ready`` after the subscription."""
    client = paho_client(f"bare-{secrets.token_hex(4)}")

    def respond(_client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        device = wire.device_of(message.topic)
        client.publish(wire.response_topic(device), message.payload, qos=1)
        client.loop_write()  # send now, not in the next turn of the loop

    client.on_message = respond
    topic = wire.shared_subscription("bare")
    client.on_connect = lambda connected_client, *_: connected_client.subscribe(topic, 1)
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.loop_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
