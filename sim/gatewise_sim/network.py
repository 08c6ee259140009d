"""Links with delay: profiles of real networks, and a TCP proxy that makes loopback like one.

The proxy stands between a device and the broker and hands on every byte late, as the link
would: half the round trip (and half its jitter) each way, no faster than the bandwidth, in
order, and with a stall of one retransmission timeout where TCP would have to send a lost
segment again. When a byte is due is computed by :class:`Direction`, which takes the time and
the randomness as arguments; :class:`DelayProxy` owns the sockets.

A user-space proxy is good to a few milliseconds: enough from Wi-Fi upward, not for
studying a wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from gatewise_training.errors import InputError

__all__ = ["PROFILES", "DelayProxy", "Direction", "LinkProfile", "profile"]

SEGMENT = 1460  # bytes of payload in a full Ethernet segment
MIN_RTO_MS = 200.0  # Linux waits at least this much longer than the round trip
_CHUNK = 16 * 1024
_IN_FLIGHT = 64  # chunks on the way in one direction before the sender is held back


@dataclass(frozen=True)
class LinkProfile:
    """What a link does to bytes.

    Parameters
    ----------
    name : str
        Its name on the command line.
    rtt_ms, jitter_ms : float
        Round trip in ms, and how far it strays to either side (uniformly).
    down_kbps, up_kbps : float
        Bandwidth towards and from the device in kbit/s; infinity for no limit.
    loss : float
        Probability that a segment is lost, in [0, 1).

    Notes
    -----
    Sources of the profiles: Loadero's network presets; Electronics 10:2224 (NB-IoT, 837 ms).
    Wi-Fi's figures, the loss on NB-IoT and satellite, and the jitter of both, are assumptions.
    """

    name: str
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    down_kbps: float = float("inf")
    up_kbps: float = float("inf")
    loss: float = 0.0

    @property
    def delays(self) -> bool:
        """Whether it does anything to the bytes at all."""
        return replace(self, name="none") != LinkProfile("none")

    @property
    def rto_ms(self) -> float:
        """How long TCP waits before it sends a lost segment again, in ms (as Linux does)."""
        return self.rtt_ms + max(MIN_RTO_MS, 4 * self.jitter_ms)


PROFILES: dict[str, LinkProfile] = {
    p.name: p
    for p in (
        LinkProfile("none"),
        LinkProfile("wifi", 5, 3, 50_000, 20_000, 0.001),
        LinkProfile("4g", 45, 15, 100_000, 50_000, 0.002),
        LinkProfile("3g", 250, 50, 1_200, 1_200, 0.005),
        LinkProfile("edge", 650, 100, 200, 260, 0.01),
        LinkProfile("nb-iot", 840, 100, 20, 20, 0.01),
        LinkProfile("satellite", 600, 50, 1_000, 256, 0.005),
    )
}


def profile(name: str) -> LinkProfile:
    """Look up a profile of :data:`PROFILES`.

    Raises
    ------
    InputError
        If there is no such profile; the message lists those there are.
    """
    if name not in PROFILES:
        raise InputError(f"no link {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


class Direction:
    """When bytes that enter one direction of a link come out of it.

    Parameters
    ----------
    link : LinkProfile
        The link.
    kbps : float
        Bandwidth of this direction in kbit/s.
    rng : random.Random
        Draws jitter and loss.

    Examples
    --------
    10 kB over 100 kbit/s take 0.8 s, and 0.1 s more to travel:

    >>> there = Direction(LinkProfile("slow", rtt_ms=200), 100.0, random.Random(0))
    >>> round(there.due(0.0, 10_000), 6)
    0.9
    """

    def __init__(self, link: LinkProfile, kbps: float, rng: random.Random) -> None:
        self._link = link
        self._kbps = kbps
        self._rng = rng
        self._free = 0.0  # when the radio has sent what it holds
        self._last = 0.0  # when the last byte came out: TCP never overtakes itself

    def due(self, now: float, size: int) -> float:
        """Time (s) at which `size` bytes that enter at `now` (s) are all delivered."""
        link, rng = self._link, self._rng
        self._free = max(now, self._free) + size * 8e-3 / self._kbps
        travel = (link.rtt_ms + rng.uniform(-1, 1) * link.jitter_ms) / 2
        for _ in range(-(-size // SEGMENT)):
            while rng.random() < link.loss:
                travel += link.rto_ms
        self._last = max(self._last, self._free + max(0.0, travel) / 1e3)
        return self._last


class DelayProxy:
    """A TCP proxy on a free loopback port that delays what passes; a context manager.

    Parameters
    ----------
    target : str
        Where to connect, ``mqtt://host:port`` (port 1883 when left out).
    link : LinkProfile
        What the link does. Each connection gets a link of its own.
    seed : int, default 0
        Of jitter and loss: connection ``i`` draws from ``seed`` and ``i``.

    Attributes
    ----------
    url : str
        Where devices connect, ``mqtt://127.0.0.1:port``.
    up_bytes, down_bytes : int
        TCP payload handed on so far, from and towards the devices.

    Raises
    ------
    InputError
        If the target is not an ``mqtt://`` URL. TLS cannot pass: its certificate would not
        name the proxy.
    """

    def __init__(self, target: str, link: LinkProfile, *, seed: int = 0) -> None:
        parts = urlsplit(target)
        if parts.scheme != "mqtt" or not parts.hostname:
            raise InputError(f"a link is simulated in front of mqtt://host:port, not {target!r}")
        self._target = (parts.hostname, parts.port or 1883)
        self._link = link
        self._seed = seed
        self._connections = 0
        self.url = ""
        self.up_bytes = 0
        self.down_bytes = 0

    def __enter__(self) -> Self:
        # Bound here, so that a port is known and an error raised before the thread starts.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="delay-proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accept until told to stop; then drop every connection at once."""
        # An accept loop of our own, since asyncio's server can still be handing over a
        # connection when it has been closed.
        self._listener.setblocking(False)
        stopped = asyncio.create_task(self._stop.wait())
        sockets: list[socket.socket] = []
        handlers: list[asyncio.Task[None]] = []
        while not stopped.done():
            accepting = asyncio.create_task(self._loop.sock_accept(self._listener))
            await asyncio.wait((accepting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                sockets.append(accepting.result()[0])
                handlers.append(asyncio.create_task(self._connection(sockets[-1])))
            else:
                accepting.cancel()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        for near in (*sockets, self._listener):
            near.close()

    async def _connection(self, near: socket.socket) -> None:
        link = self._link
        self._connections += 1
        rng = random.Random(f"{self._seed}/{self._connections}")
        up = Direction(link, link.up_kbps, rng)
        down = Direction(link, link.down_kbps, random.Random(rng.random()))
        # asyncio does so itself only for sockets that it made.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=near, limit=_CHUNK)
        ends = [writer]
        try:
            # The handshake takes one round trip before the first byte can go.
            await asyncio.sleep(link.rtt_ms / 1e3)
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_CHUNK)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hand_on(reader, far_writer, up, upward=True))
                group.create_task(self._hand_on(far_reader, writer, down, upward=False))
        except* OSError:
            pass  # either end hung up: so do we
        except* asyncio.CancelledError:
            for end in ends:
                end.transport.abort()  # the peer may not be reading: wait for nothing
        finally:
            for end in ends:
                end.close()

    async def _hand_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        *,
        upward: bool,
    ) -> None:
        """Carry one direction until its sender closes: read, wait until due, write."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

        async def write() -> None:
            while True:
                due, chunk = await queue.get()
                wait = due - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                if not chunk:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                # Counted first: who has received a byte must find it counted.
                if upward:
                    self.up_bytes += len(chunk)
                else:
                    self.down_bytes += len(chunk)
                writer.write(chunk)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            chunk = b"more"
            while chunk:
                chunk = await reader.read(_CHUNK)
                await queue.put((direction.due(time.monotonic(), len(chunk)), chunk))
