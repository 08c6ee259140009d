"""Links: profiles of real networks, delivery times and message sizes.

A profile is an entry of :data:`PROFILES`, or a file of the user::

    like = "4g"              # profile with the other values; by default a link without delay
    name = "our LTE"
    rtt_ms = 60
    jitter_ms = 10
    down_kbps = 20000        # inf for no limit
    up_kbps = 5000
    loss = 0.01

    [radio]                  # optional
    like = "lte"
    tail_s = 5
"""

from __future__ import annotations

import math
import random
from dataclasses import replace as replace_fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from gatewise.documents import Amount, DocumentError, Record, convert, parse_toml
from gatewise.errors import InputError
from gatewise_edge.link.messages import AuditMark, Request, Response
from gatewise_edge.link.wire import (
    BUSY,
    encode_request,
    encode_response,
    request_topic,
    response_topic,
)
from gatewise_sim.fleet.energy import RADIOS, Radio, count_packets
from gatewise_sim.fleet.outages import Outages

#: Shortest time beyond the round trip until Linux retransmits a TCP segment, in ms.
MIN_RTO_MS: Final = 200.0
#: Longest time until a retransmission of TCP on Linux, in s; it doubles up to this value.
MAX_RTO_S: Final = 120.0
#: Time until Linux repeats the first packet of a TCP connection, in s.
SYN_RTO_S: Final = 1.0
#: Largest number of bytes that a proxy forwards at a time, so that a short message need not wait
#: until a long one is forwarded completely.
CHUNK_BYTES: Final = 16 * 1024
#: Size of a PUBACK (MQTT 3.1.1, section 3.4).
PUBACK_BYTES: Final = 4

#: Bytes up and down of the handshakes before the first request: CONNECT with a will and CONNACK,
#: SUBSCRIBE and SUBACK. The sizes of the answers are fixed (MQTT 3.1.1, sections 3.2 and 3.9).
_MQTT_HANDSHAKES: Final = ((64, 4), (25, 5))
#: Bytes of the TLS 1.3 handshake (RFC 8446, section 2): ClientHello, and the server's messages with
#: two certificates.
_TLS_HANDSHAKE: Final = (517, 2500)

Kbps = Annotated[float, Meta(gt=0.0)]


class LinkProfile(Record, frozen=True):
    """Delay, bandwidth and loss of a link.

    Parameters
    ----------
    name : str
        Name in reports.
    rtt_ms, jitter_ms : float
        Round trip, and largest deviation from it, in ms. The jitter has a uniform distribution.
    down_kbps, up_kbps : float
        Bandwidth to and from the device in kbit/s; infinity for no limit.
    loss : float
        Probability that a segment is lost, in [0, 1).
    radio : Radio
        Energy of the device's radio.
    """

    name: str
    rtt_ms: Amount = 0.0
    jitter_ms: Amount = 0.0
    down_kbps: Kbps = math.inf
    up_kbps: Kbps = math.inf
    loss: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    radio: Radio = RADIOS["none"]

    def __post_init__(self) -> None:
        if self.jitter_ms > self.rtt_ms:
            raise InputError(
                f"link {self.name!r}: jitter_ms is {self.jitter_ms}; it must not be above rtt_ms "
                f"({self.rtt_ms})"
            )

    @property
    def delays_messages(self) -> bool:
        """Whether the link delays messages."""
        unnamed_profile = msgspec.structs.replace(self, name="none", radio=RADIOS["none"])
        return unnamed_profile != LinkProfile("none")

    @property
    def rto_ms(self) -> float:
        """Milliseconds after which TCP retransmits a lost segment, as on Linux.

        RFC 6298, section 2: the round trip plus four deviations. For the four deviations Linux
        takes at least :data:`MIN_RTO_MS`.
        """
        return self.rtt_ms + max(MIN_RTO_MS, 4 * self.jitter_ms)


#: Profile of each value of ``--link``. The columns are name, round trip and jitter (ms), bandwidth
#: down and up (kbit/s), loss and radio. Sources: network presets of Loadero, and Electronics
#: 10:2224 (NB-IoT, 837 ms). The figures of Wi-Fi, and loss and jitter of NB-IoT and satellite, are
#: assumptions.
_PROFILES: Final[tuple[tuple[Any, ...], ...]] = (
    ("none", 0, 0, math.inf, math.inf, 0.0, RADIOS["none"]),
    ("wifi", 5, 3, 50_000, 20_000, 0.001, RADIOS["wifi"]),
    ("4g", 45, 15, 100_000, 50_000, 0.002, RADIOS["lte"]),
    ("3g", 250, 50, 1_200, 1_200, 0.005, RADIOS["3g"]),
    ("edge", 650, 100, 200, 260, 0.01, RADIOS["gsm"]),
    ("nb-iot", 840, 100, 20, 20, 0.01, RADIOS["nb-iot"]),
    ("satellite", 600, 50, 1_000, 256, 0.005, RADIOS["satellite"]),
)
PROFILES: Final[dict[str, LinkProfile]] = {row[0]: LinkProfile(*row) for row in _PROFILES}


def read_profile(name: str) -> LinkProfile:
    """Get a profile of :data:`PROFILES` by name, or read the file ``NAME.toml``."""
    if not name.endswith(".toml"):
        if name in PROFILES:
            return PROFILES[name]
        names = ", ".join(PROFILES)
        raise InputError(
            f"unknown link {name!r}; choose one of {names}, or a file such as link.toml"
        )
    source = f"link file {name}"
    entries: dict[str, Any] = {"name": Path(name).stem, **parse_toml(name, source)}
    template = _pop_template(entries, PROFILES, PROFILES["none"], source)
    if "radio" in entries:
        radio_entries: dict[str, Any] = dict(
            convert(entries["radio"], dict[str, Any], source, "radio")
        )
        radio_template = _pop_template(radio_entries, RADIOS, template.radio, source, "radio.")
        entries["radio"] = _list_fields(radio_template) | {"name": entries["name"]} | radio_entries
    return convert(_list_fields(template) | entries, LinkProfile, source)


def _pop_template(
    entries: dict[str, Any],
    records: dict[str, Any],
    default: Any,
    source: str,
    key_prefix: str = "",
) -> Any:
    """Remove the key ``like`` from `entries`, and return the record that it names."""
    template_name = entries.pop("like", None)
    if template_name is None:
        return default
    if not isinstance(template_name, str) or template_name not in records:
        problem = f"must be one of {', '.join(records)}, not {template_name!r:.40}"
        raise DocumentError(source, f"{key_prefix}like", problem)
    return records[template_name]


def _list_fields(record: Record) -> dict[str, Any]:
    """List the fields of a record; nested records are plain values."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: getattr(record, name) for name in record.__struct_fields__} | fields


class Direction:
    """Delivery times of one direction of a link.

    During an outage of the link, TCP retransmits a packet until the link is up, with a timeout that
    doubles each time.

    At 100 kbit/s, 10 kB take 0.8 s, and the delay of the link is 0.1 s:

    >>> uplink = Direction(LinkProfile("slow", rtt_ms=200), 100.0, random.Random(0))
    >>> round(uplink.delivery_time(0.0, 10_000), 6)
    0.9
    """

    def __init__(
        self, profile: LinkProfile, kbps: float, rng: random.Random, outages: Outages | None = None
    ) -> None:
        self._s_per_byte = 8e-3 / kbps  # 8 bits at `kbps` * 1000 bit/s
        self._delay_s = profile.rtt_ms / 2e3  # half of the round trip, in s
        self._jitter_s = profile.jitter_ms / 1e3
        self._loss = profile.loss
        self._rto_s = profile.rto_ms / 1e3
        self._rng = rng
        self._outages = outages
        # Times (s) at which the link is free for the next packet, and at which the latest packet
        # arrives. TCP delivers packets in order.
        self._free_at = 0.0
        self._latest_arrival = 0.0

    def delivery_time(self, now: float, n_bytes: int) -> float:
        """Compute the time (s) at which `n_bytes` sent at `now` (s) are delivered."""
        draw_number = self._rng.random
        free_at = (now if now > self._free_at else self._free_at) + n_bytes * self._s_per_byte
        if self._outages is not None:
            free_at = _compute_transmission_time(free_at, self._rto_s, self._outages)
        self._free_at = free_at
        delay_s = self._delay_s
        if self._jitter_s:
            # Each direction deviates by up to half of the jitter of the round trip.
            delay_s += (draw_number() - 0.5) * self._jitter_s
        if self._loss:
            for _ in range(count_packets(n_bytes)):
                while draw_number() < self._loss:
                    delay_s += self._rto_s
        arrival = free_at + (delay_s if delay_s > 0.0 else 0.0)
        if arrival > self._latest_arrival:
            self._latest_arrival = arrival
        return self._latest_arrival


def _compute_transmission_time(now: float, timeout_s: float, outages: Outages | None) -> float:
    """Compute the time (s) at which a packet is sent while the link is up.

    It is first sent at `now` (s), and again after `timeout_s` (s), which doubles each time.
    """
    while (
        outages
        and math.isfinite(now)
        and (recovery_time := outages.recovery_time("link", now)) is not None
    ):
        now = recovery_time if math.isinf(recovery_time) else now + timeout_s
        timeout_s = min(2 * timeout_s, MAX_RTO_S)
    return now


class VirtualLink:
    """Delivery times of a connection over a link, in virtual time or for a proxy in real time.

    `rng` draws jitter and loss. `outages` are the outages of the run.

    >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
    >>> link.connection_time(0.0), link.send(1.0, 300, is_uplink=True)
    (0.1, 1.05)
    """

    def __init__(
        self,
        profile: LinkProfile,
        rng: random.Random,
        outages: Outages | None = None,
    ) -> None:
        self._profile = profile
        self._outages = outages
        self.uplink = Direction(profile, profile.up_kbps, rng, outages)
        self.downlink = Direction(profile, profile.down_kbps, rng, outages)

    def connection_time(self, now: float) -> float:
        """Compute the time (s) at which a TCP connection that starts at `now` (s) is open.

        The handshake takes a round trip. Its first packet is repeated while the link is down.
        """
        return (
            _compute_transmission_time(now, SYN_RTO_S, self._outages) + self._profile.rtt_ms / 1e3
        )

    def open_session(self, start: float, *, uses_tls: bool = False) -> float:
        """Compute the time (s) at which an MQTT session that starts at `start` (s) is ready.

        The handshakes of TCP, TLS (with `uses_tls`) and MQTT and the subscription take a round trip
        each.

        >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
        >>> round(link.open_session(1.0, uses_tls=True), 6)
        1.4
        """
        time = self.connection_time(start)
        for bytes_up, bytes_down in (
            (_TLS_HANDSHAKE, *_MQTT_HANDSHAKES) if uses_tls else _MQTT_HANDSHAKES
        ):
            time = self.send(self.send(time, bytes_up, is_uplink=True), bytes_down, is_uplink=False)
        return time

    def send(self, now: float, n_bytes: int, *, is_uplink: bool) -> float:
        """Compute the time (s) at which the last of `n_bytes` sent at `now` (s) arrives.

        With `is_uplink` the device is the sender. In each direction, `now` must not decrease from
        call to call. The bytes are sent in chunks of :data:`CHUNK_BYTES`, as a proxy reads them.
        """
        direction = self.uplink if is_uplink else self.downlink
        if n_bytes <= CHUNK_BYTES:
            return direction.delivery_time(now, n_bytes)
        arrival = now
        for begin in range(0, n_bytes, CHUNK_BYTES):
            arrival = direction.delivery_time(now, min(CHUNK_BYTES, n_bytes - begin))
        return arrival


# -- messages ---------------------------------------------------------------------------------

#: Device name with the length of a virtual device's name.
_DEVICE_NAME: Final = "0" * 8
REQUEST_TOPIC: Final = request_topic(_DEVICE_NAME)
RESPONSE_TOPIC: Final = response_topic(_DEVICE_NAME)


@lru_cache(maxsize=4096)
def publish_bytes(topic: str, payload_bytes: int) -> int:
    """Compute the size of an MQTT 3.1.1 PUBLISH packet at QoS 1 with this payload.

    >>> publish_bytes("gw/v1/a/req", 100)
    117
    """
    # MQTT 3.1.1, section 3.3: the topic has 2 bytes of length, and the packet id has 2 bytes.
    # Section 2.2.3: the remaining length is encoded in digits of base 128.
    remaining_length = 2 + len(topic.encode()) + 2 + payload_bytes
    n_digits = (
        1 + (remaining_length >= 128) + (remaining_length >= 128**2) + (remaining_length >= 128**3)
    )
    return 1 + n_digits + remaining_length


class MessageSizes:
    """Payload sizes of messages for one instance, by the real encoder."""

    def __init__(
        self, *, model: str, version: str, n_values: int, n_classes: int, dtype: Any
    ) -> None:
        X = np.zeros((1, max(n_values, 1)), dtype)
        self._request = Request(id=bytes(16), model=model, version=version, ttl_ms=0, X=X)
        answer_response = Response(
            id=bytes(16),
            model=model,
            version=version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(n_classes, 2)), np.float32),
        )
        busy_response = Response.refusal(self._request, BUSY, "the queue is full")
        self._request_bytes = len(encode_request(self._request))
        self._response_bytes = len(encode_response(answer_response))
        self._busy_bytes = len(encode_response(replace_fields(busy_response, wait_ms=1)))

    def request(self, ttl_ms: int) -> int:
        """Compute the size of a request with a time to live in ms."""
        return self._request_bytes + _count_extra_bytes(ttl_ms)

    def response(self, worker_us: int) -> int:
        """Compute the size of a response with an answer; `worker_us` is the worker's time in it."""
        return self._response_bytes + _count_extra_bytes(worker_us)

    def refusal(self, wait_ms: int) -> int:
        """Compute the size of a refusal with a waiting time in ms."""
        return self._busy_bytes + _count_extra_bytes(wait_ms)

    def audit(self, mark: AuditMark, ttl_ms: int) -> int:
        """Compute the size of a request that audits an answer."""
        return len(encode_request(replace_fields(self._request, audit=mark, ttl_ms=ttl_ms)))


def _count_extra_bytes(unsigned_number: int) -> int:
    """Count the bytes of an unsigned number in CBOR after the first one (RFC 8949, section 3)."""
    if unsigned_number < 256:
        return int(unsigned_number >= 24)
    return 2 if unsigned_number < 1 << 16 else 4
