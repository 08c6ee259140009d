"""Links: what one does to bytes, and when those that enter it come out.

The arithmetic of the proxy and of virtual time.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

from gatewise.documents.toml_settings import take_number
from gatewise.errors import InputError
from gatewise_sim.fleet.energy import RADIOS, Radio, packets
from gatewise_sim.fleet.network.outages import Outages

MIN_RTO_MS: Final = 200.0  # Linux waits at least this much longer than the round trip
CHUNK: Final = 16 * 1024  # bytes that the proxy hands on at a time
MAX_RTO_S: Final = 120.0  # Linux doubles its wait for an acknowledgement up to this
SYN_RTO_S: Final = 1.0  # Linux waits so long for a peer that it does not know yet

#: Bytes up, and down again, until a device can send a request: CONNECT with its will and CONNACK,
#: SUBSCRIBE and SUBACK. Before them with TLS 1.3: ClientHello, and a server's flight with two
#: certificates (RFC 8446, section 2: one round trip).
_SESSION: Final = ((64, 4), (25, 5))
_TLS: Final = (517, 2500)

_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class LinkProfile:
    """What a link does to bytes; InputError names a figure that cannot be.

    Sources of the profiles: Loadero's network presets; Electronics 10:2224 (NB-IoT, 837 ms).
    Wi-Fi's figures, the loss on NB-IoT and satellite, and the jitter of both, are assumptions.

    Attributes
    ----------
    name : str
    rtt_ms, jitter_ms : float
        Round trip, and jitter to either side, uniform, in ms.
    down_kbps, up_kbps : float
        Bandwidth towards and from the device in kbit/s; infinity: no limit.
    loss : float
        Probability that a segment is lost, in [0, 1).
    radio : Radio
        What sending and receiving take of the device's energy.
    """

    name: str
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    down_kbps: float = float("inf")
    up_kbps: float = float("inf")
    loss: float = 0.0
    radio: Radio = RADIOS["none"]

    def __post_init__(self) -> None:
        where = f"link {self.name!r}"
        for field in ("rtt_ms", "jitter_ms", "loss"):
            take_number(getattr(self, field), f"{where}: {field}")
        for field in ("down_kbps", "up_kbps"):
            take_number(getattr(self, field), f"{where}: {field}", positive=True, infinite=True)
        if not self.loss < 1:
            raise InputError(f"{where}: loss is {self.loss}, must be below 1")
        if self.jitter_ms > self.rtt_ms:
            raise InputError(
                f"{where}: jitter_ms is {self.jitter_ms}, must not be above rtt_ms ({self.rtt_ms})"
            )

    @property
    def delays(self) -> bool:
        """Whether it does anything to the bytes at all."""
        return replace(self, name="none", radio=RADIOS["none"]) != LinkProfile("none")

    @property
    def rto_ms(self) -> float:
        """How long TCP waits before it sends a lost segment again, in ms (as Linux does)."""
        return self.rtt_ms + max(MIN_RTO_MS, 4 * self.jitter_ms)


class DeviceDraws:
    """Random numbers of one device's link and breaker, in 64 bits of state.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a counter and a hash of it. A device's stream
    begins at the hash of the run's seed and the device's number.

    >>> draws, again = DeviceDraws(1, 7), DeviceDraws(1, 7)
    >>> draws.random() == again.random() != DeviceDraws(1, 8).random()
    True
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, device: int) -> None:
        self._state = _hashed(_hashed(seed & _MASK) + device * _STEP & _MASK)

    def random(self) -> float:
        """One in [0, 1)."""
        self._state = self._state + _STEP & _MASK
        return (_hashed(self._state) >> 11) * 2.0**-53


Draws = random.Random | DeviceDraws


def _hashed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


class Direction:
    """When bytes that enter one direction of a link come out of it.

    While the ``link`` is down by the outages, what leaves the device is sent again by TCP after one
    timeout, then after twice as long, and so on, until a copy leaves with the link up.

    10 kB over 100 kbit/s take 0.8 s, and 0.1 s more to travel:

    >>> there = Direction(LinkProfile("slow", rtt_ms=200), 100.0, random.Random(0))
    >>> round(there.due(0.0, 10_000), 6)
    0.9
    """

    __slots__ = ("_free", "_kbps", "_last", "_link", "_outages", "_rng")

    def __init__(
        self, link: LinkProfile, kbps: float, rng: Draws, outages: Outages | None = None
    ) -> None:
        self._link = link
        self._kbps = kbps
        self._rng = rng
        self._outages = outages
        self._free = 0.0  # when the radio has sent what it holds
        self._last = 0.0  # when the last byte came out: TCP never overtakes itself

    def due(self, now: float, size: int) -> float:
        """Time (s) at which `size` bytes that enter at `now` (s) are all delivered."""
        link, rng = self._link, self._rng
        free = (now if now > self._free else self._free) + size * 8e-3 / self._kbps
        if self._outages is not None:
            free = _sent(free, link.rto_ms / 1e3, self._outages)
        self._free = free
        travel = link.rtt_ms / 2
        if link.jitter_ms:
            travel += (rng.random() - 0.5) * link.jitter_ms
        if link.loss:
            for _ in range(packets(size)):
                while rng.random() < link.loss:
                    travel += link.rto_ms
        due = free + (travel / 1e3 if travel > 0.0 else 0.0)
        if due > self._last:
            self._last = due
        return self._last


def _sent(now: float, wait: float, outages: Outages | None) -> float:
    """When a packet leaves for good that leaves at `now` (s) first and is repeated after `wait`."""
    while outages and math.isfinite(now) and (until := outages.down("link", now)) is not None:
        now = until if math.isinf(until) else now + wait
        wait = min(2 * wait, MAX_RTO_S)
    return now


class VirtualLink:
    """Times of one connection over a link: those of virtual time, and of :class:`.DelayProxy`.

    `profile` and `outages` are those of the link; `rng` draws jitter and loss of this connection
    alone; `back`, by default seeded by it, those of the way to the device.

    >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
    >>> link.connect(0.0), link.send(1.0, 300, up=True), link.send(1.05, 60, up=False)
    (0.1, 1.05, 1.1)
    """

    __slots__ = ("_down", "_outages", "_profile", "_up")

    def __init__(
        self,
        profile: LinkProfile,
        rng: Draws,
        outages: Outages | None = None,
        back: Draws | None = None,
    ) -> None:
        self._profile = profile
        self._outages = outages
        self._up = Direction(profile, profile.up_kbps, rng, outages)
        back = random.Random(rng.random()) if back is None else back
        self._down = Direction(profile, profile.down_kbps, back, outages)

    def connect(self, now: float) -> float:
        """Time (s) at which a TCP connection begun at `now` (s) can carry its first byte.

        The handshake takes a round trip; its first packet is sent again while the link is down.
        """
        return _sent(now, SYN_RTO_S, self._outages) + self._profile.rtt_ms / 1e3

    def session(self, begun: float, *, tls: bool = False) -> float:
        """Time (s) at which an MQTT session begun at `begun` (s) can carry a request.

        Handshakes take a round trip each: TCP's, TLS's with `tls`, MQTT's, and subscribing.

        >>> link = VirtualLink(LinkProfile("x", rtt_ms=100), random.Random(0))
        >>> round(link.session(1.0, tls=True), 6)
        1.4
        """
        at = self.connect(begun)
        for up, down in (_TLS, *_SESSION) if tls else _SESSION:
            at = self.send(self.send(at, up, up=True), down, up=False)
        return at

    def send(self, now: float, n_bytes: int, up: bool) -> float:
        """Time (s) at which the last of `n_bytes` of TCP payload sent at `now` (s) arrives.

        `now` is not before the last call's of the same direction; `up`: from the device. It travels
        in pieces of :data:`CHUNK`, as the proxy reads it.
        """
        direction = self._up if up else self._down
        if n_bytes <= CHUNK:
            return direction.due(now, n_bytes)
        due = now
        for begin in range(0, n_bytes, CHUNK):
            due = direction.due(now, min(CHUNK, n_bytes - begin))
        return due
