"""Links: profiles of real networks, when bytes that enter a link come out, and message sizes.

A profile is an entry of :data:`PROFILES`, which help texts and errors list, or a user's own file::

    like = "4g"              # profile of the values left out; without it a link without delay
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
from gatewise_sim.fleet.energy import RADIOS, Radio, packets
from gatewise_sim.fleet.outages import Outages

#: Linux waits for an acknowledgement this much longer than the round trip (ms), doubles its wait up
#: to a maximum (s), and waits for the answer to a SYN for another time (s).
MIN_RTO_MS: Final = 200.0
MAX_RTO_S: Final = 120.0
SYN_RTO_S: Final = 1.0
#: Bytes that a proxy hands on at a time.
CHUNK: Final = 16 * 1024
PUBACK_BYTES: Final = 4

#: Bytes up, and down again, until a device can send a request: CONNECT with its will and CONNACK,
#: SUBSCRIBE and SUBACK. Before them with TLS 1.3: ClientHello, and a server's flight with two
#: certificates (RFC 8446, section 2: one round trip).
_SESSION: Final = ((64, 4), (25, 5))
_TLS: Final = (517, 2500)

Kbps = Annotated[float, Meta(gt=0.0)]


class LinkProfile(Record, frozen=True):
    """Delay, bandwidth and loss of a link.

    Parameters
    ----------
    name : str
    rtt_ms, jitter_ms : float
        Round trip, and jitter to either side, uniform, in ms.
    down_kbps, up_kbps : float
        Bandwidth towards and from the device in kbit/s; infinity: no limit.
    loss : float
        Probability that a segment is lost, in [0, 1).
    radio : Radio
        Energy that sending and receiving take of the device.
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
                f"link {self.name!r}: jitter_ms is {self.jitter_ms}, must not be above rtt_ms "
                f"({self.rtt_ms})"
            )

    @property
    def delays(self) -> bool:
        """Whether it changes the time or the order of bytes."""
        plain = msgspec.structs.replace(self, name="none", radio=RADIOS["none"])
        return plain != LinkProfile("none")

    @property
    def rto_ms(self) -> float:
        """Milliseconds that TCP waits before it sends a lost segment again (as Linux does)."""
        return self.rtt_ms + max(MIN_RTO_MS, 4 * self.jitter_ms)


#: Name, round trip and jitter (ms), bandwidth down and up (kbit/s), loss, radio. Sources: Loadero's
#: network presets; Electronics 10:2224 (NB-IoT, 837 ms). Wi-Fi's figures, the loss on NB-IoT and
#: satellite, and the jitter of both, are assumptions. A new line here is a new ``--link``.
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
        raise InputError(f"no link {name!r}; choose one of {names}, or a file such as link.toml")
    file = f"link file {name}"
    entries: dict[str, Any] = {"name": Path(name).stem, **parse_toml(name, file)}
    base = _entry_like(entries, PROFILES, PROFILES["none"], file)
    if "radio" in entries:
        radio: dict[str, Any] = dict(convert(entries["radio"], dict[str, Any], file, "radio"))
        like = _entry_like(radio, RADIOS, base.radio, file, "radio.")
        entries["radio"] = _fields(like) | {"name": entries["name"]} | radio
    return convert(_fields(base) | entries, LinkProfile, file)


def _entry_like(
    entries: dict[str, Any], records: dict[str, Any], default: Any, file: str, path: str = ""
) -> Any:
    """Take the key ``like`` out of `entries`; return the record that it names."""
    like = entries.pop("like", None)
    if like is None:
        return default
    if like not in records:
        why = f"must be one of {', '.join(records)}, not {like!r:.40}"
        raise DocumentError(file, f"{path}like", why)
    return records[like]


def _fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: getattr(record, name) for name in record.__struct_fields__} | fields


class Direction:
    """One direction of a link: the times at which bytes that enter it come out.

    While the ``link`` is down by the outages, TCP sends a packet of the device again: after one
    timeout, then after twice as long, and so on, until a copy leaves with the link up.

    10 kB over 100 kbit/s take 0.8 s, and 0.1 s more to travel:

    >>> uplink = Direction(LinkProfile("slow", rtt_ms=200), 100.0, random.Random(0))
    >>> round(uplink.due(0.0, 10_000), 6)
    0.9
    """

    def __init__(
        self, link: LinkProfile, kbps: float, rng: random.Random, outages: Outages | None = None
    ) -> None:
        self._s_per_byte = 8e-3 / kbps
        self._travel = link.rtt_ms / 2e3
        self._jitter = link.jitter_ms / 1e3
        self._loss = link.loss
        self._rto = link.rto_ms / 1e3
        self._rng = rng
        self._outages = outages
        # Times (s) when the radio is free again, and when the last byte came out: TCP never
        # overtakes itself.
        self._free = 0.0
        self._last = 0.0

    def due(self, now: float, size: int) -> float:
        """Time (s) at which `size` bytes that enter at `now` (s) are all delivered."""
        random_number = self._rng.random
        free = (now if now > self._free else self._free) + size * self._s_per_byte
        if self._outages is not None:
            free = _departure(free, self._rto, self._outages)
        self._free = free
        travel = self._travel
        if self._jitter:
            travel += (random_number() - 0.5) * self._jitter
        if self._loss:
            for _ in range(packets(size)):
                while random_number() < self._loss:
                    travel += self._rto
        due = free + (travel if travel > 0.0 else 0.0)
        if due > self._last:
            self._last = due
        return self._last


def _departure(now: float, wait: float, outages: Outages | None) -> float:
    """Time at which a packet first sent at `now` (s), and again after `wait`, gets through."""
    while outages and math.isfinite(now) and (until := outages.down("link", now)) is not None:
        now = until if math.isinf(until) else now + wait
        wait = min(2 * wait, MAX_RTO_S)
    return now


class VirtualLink:
    """Times of one connection over a link, for virtual time and for a proxy in real time.

    `rng` draws jitter and loss of the way up, `rng_down`, by default the same, of the way down. The
    link is down by the `outages`.

    >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
    >>> link.connect(0.0), link.send(1.0, 300, up=True), link.send(1.05, 60, up=False)
    (0.1, 1.05, 1.1)
    """

    def __init__(
        self,
        profile: LinkProfile,
        rng: random.Random,
        outages: Outages | None = None,
        rng_down: random.Random | None = None,
    ) -> None:
        self._profile = profile
        self._outages = outages
        self.up = Direction(profile, profile.up_kbps, rng, outages)
        self.down = Direction(profile, profile.down_kbps, rng_down or rng, outages)

    def connect(self, now: float) -> float:
        """Time (s) at which a TCP connection begun at `now` (s) can carry its first byte.

        The handshake takes a round trip; its first packet is sent again while the link is down.
        """
        return _departure(now, SYN_RTO_S, self._outages) + self._profile.rtt_ms / 1e3

    def session(self, begun: float, *, tls: bool = False) -> float:
        """Time (s) at which an MQTT session begun at `begun` (s) can carry a request.

        Handshakes take a round trip each: TCP's, TLS's with `tls`, MQTT's, and subscribing.

        >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
        >>> round(link.session(1.0, tls=True), 6)
        1.4
        """
        now = self.connect(begun)
        for bytes_up, bytes_down in (_TLS, *_SESSION) if tls else _SESSION:
            now = self.send(self.send(now, bytes_up, up=True), bytes_down, up=False)
        return now

    def send(self, now: float, n_bytes: int, up: bool) -> float:
        """Time (s) at which the last of `n_bytes` of TCP payload sent at `now` (s) arrives.

        `now` is not before the last call's of the same direction; `up`: from the device. It travels
        in pieces of :data:`CHUNK`, as a proxy reads it.
        """
        direction = self.up if up else self.down
        if n_bytes <= CHUNK:
            return direction.due(now, n_bytes)
        due = now
        for begin in range(0, n_bytes, CHUNK):
            due = direction.due(now, min(CHUNK, n_bytes - begin))
        return due


# -- messages ---------------------------------------------------------------------------------

#: A name as long as a virtual device's.
_NAME: Final = "0" * 8
REQUEST_TOPIC: Final = request_topic(_NAME)
RESPONSE_TOPIC: Final = response_topic(_NAME)


@lru_cache(maxsize=4096)
def publish_bytes(topic: str, payload: int) -> int:
    """Bytes of an MQTT 3.1.1 PUBLISH packet at QoS 1 with that many bytes of payload.

    >>> publish_bytes("gw/v1/a/req", 100)
    117
    """
    # MQTT 3.1.1, section 2.2.3: the remaining length in digits of base 128.
    remaining = 2 + len(topic.encode()) + 2 + payload
    digits = 1 + (remaining >= 128) + (remaining >= 128**2) + (remaining >= 128**3)
    return 1 + digits + remaining


class MessageSizes:
    """Payload bytes of messages of one instance, by the wire's own encoder."""

    def __init__(
        self, *, model: str, version: str, n_values: int, n_classes: int, dtype: Any
    ) -> None:
        X = np.zeros((1, max(n_values, 1)), dtype)
        self._request = Request(id=bytes(16), model=model, version=version, ttl_ms=0, X=X)
        response = Response(
            id=bytes(16),
            model=model,
            version=version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(n_classes, 2)), np.float32),
        )
        busy = Response.refusal(self._request, BUSY, "the queue is full")
        self._request_bytes = len(encode_request(self._request))
        self._response_bytes = len(encode_response(response))
        self._busy_bytes = len(encode_response(replace_fields(busy, wait_ms=1)))

    def request(self, ttl_ms: int) -> int:
        """Bytes of a request with a time to live in ms."""
        return self._request_bytes + _more_bytes(ttl_ms)

    def response(self, worker_us: int) -> int:
        """Bytes of an answer that took a worker that many microseconds."""
        return self._response_bytes + _more_bytes(worker_us)

    def refusal(self, wait_ms: int) -> int:
        """Bytes of a refusal for a wait in ms."""
        return self._busy_bytes + _more_bytes(wait_ms)

    def audit(self, mark: AuditMark, ttl_ms: int) -> int:
        """Bytes of a request that audits an answer."""
        return len(encode_request(replace_fields(self._request, audit=mark, ttl_ms=ttl_ms)))


def _more_bytes(number: int) -> int:
    """Bytes that an unsigned number takes in CBOR beyond the one of a 0 (RFC 8949, section 3)."""
    if number < 256:
        return int(number >= 24)
    return 2 if number < 1 << 16 else 4
