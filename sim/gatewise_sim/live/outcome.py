"""What one answered instance leaves behind, and what its messages weigh. Light: devices use it."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BYTES_FORMULA", "PUBACK_BYTES", "Outcome", "publish_bytes"]

PUBACK_BYTES: Final = 4
BYTES_FORMULA: Final = (
    "payload + topic + MQTT 3.1.1 PUBLISH header (1 byte, 1 to 4 of remaining length, 2 of topic "
    "length, 2 of packet id at QoS 1), and 4 the other way for the PUBACK of QoS 1; summed over "
    "the messages a device sent and received; without TCP/IP, keepalives and connecting"
)


class Outcome(NamedTuple):
    """One answered instance, as a device reports it.

    Attributes
    ----------
    row : int
        Index of the row that the instance is.
    route : str
        "edge", "cloud" or "fallback"; "error" if a sensor's trouble took the place of an answer.
    stage : int
        The stage whose answer it is, from 0; the number of stages for the cloud's; -1 of an error.
    label : int
        Class index; -1 of an error.
    cost : float
        Full cost that the device metered, in the unit of the feature costs.
    feature_cost : float
        The features' part of it.
    latency_ms : float
    up, down : int
        Bytes sent and received about it (:data:`BYTES_FORMULA`); late responses count, too.
    payload_up, payload_down : int
        The payloads' share of them.
    device : str
    reason : str
        An error's message.
    number : int
        Which instance of the pass it is.
    time : float
        When it came, in seconds since the pass began.
    device_ms : float
        Until its request went out; the whole latency where there was none.
    cloud_ms : float
        What the worker took, by the response that was used; else 0.
    paced : bool
        Whether a pacer decided.
    """

    row: int
    route: str
    stage: int
    label: int
    cost: float
    feature_cost: float
    latency_ms: float
    up: int
    down: int
    payload_up: int
    payload_down: int
    device: str
    reason: str
    number: int = -1
    time: float = 0.0
    device_ms: float = 0.0
    cloud_ms: float = 0.0
    paced: bool = False


def publish_bytes(topic: str, payload: int, *, qos: int = 1) -> int:
    """Bytes of an MQTT 3.1.1 PUBLISH packet.

    Parameters
    ----------
    topic : str
    payload : int
        Bytes of its payload.
    qos : {0, 1}, default 1

    Examples
    --------
    >>> publish_bytes("gw/v1/a/req", 100)
    117
    """
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + payload
    digits = 1 + (rest >= 128) + (rest >= 128**2) + (rest >= 128**3)
    return 1 + digits + rest
