"""A TCP proxy that delays every byte on loopback as a real link would.

Half the round trip (and half its jitter) each way, no faster than the bandwidth, in order, and with
a stall of one retransmission timeout where TCP would have to send a lost segment again.
:class:`.VirtualLink` computes when a byte is due; :class:`DelayProxy` owns the sockets. It is good
to a few milliseconds: enough from Wi-Fi upward, not for studying a wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
import selectors
import socket
import threading
import time
from typing import Self
from urllib.parse import urlsplit

from gatewise.errors import InputError
from gatewise_sim.fleet.link import CHUNK, LinkProfile, VirtualLink
from gatewise_sim.fleet.outages import Outages

#: Descriptors from here on are too large for select(2).
_SELECTABLE = 1024
#: Chunks on the way in one direction before the sender is held back.
_IN_FLIGHT = 64


class DelayProxy:
    """A TCP proxy on a free loopback port that delays what passes; a context manager.

    Devices connect to `url`; it connects to `target`, an ``mqtt://`` URL (InputError otherwise: TLS
    cannot pass, as its certificate would not name the proxy). Connection ``i`` gets a link of its
    own, which draws from ``seed`` and ``i``. When ``link`` is down by the `outages`, connections
    stay, their bytes wait and are sent again as TCP would; `began` is what their times count from,
    on :func:`time.monotonic`. `up_bytes` and `down_bytes` count the TCP payload handed on so far.
    """

    def __init__(
        self, target: str, link: LinkProfile, *, seed: int = 0, outages: Outages | None = None
    ) -> None:
        url = urlsplit(target)
        if url.scheme != "mqtt" or not url.hostname:
            raise InputError(f"a link is simulated in front of mqtt://host:port, not {target!r}")
        self._target = (url.hostname, url.port or 1883)
        self._link = link
        self._seed = seed
        self._outages = None if outages is None else _SinceItBegan(self, outages)
        self._connections = 0
        self.url = ""
        self.up_bytes = 0
        self.down_bytes = 0
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        # Bound here, so that a port is known and an error raised before the thread starts.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.began = time.monotonic()
        self._loop = _event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="delay-proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
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
        self._connections += 1
        rng = random.Random(f"{self._seed}/{self._connections}")
        link = VirtualLink(self._link, rng, self._outages)
        # asyncio does so itself only for sockets that it made.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=near, limit=CHUNK)
        ends = [writer]
        try:
            # The handshake takes one round trip before the first byte can go.
            now = time.monotonic()
            await asyncio.sleep(link.connect(now) - now)
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hand_on(reader, far_writer, link, up=True))
                group.create_task(self._hand_on(far_reader, writer, link, up=False))
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
        link: VirtualLink,
        *,
        up: bool,
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
                if up:
                    self.up_bytes += len(chunk)
                else:
                    self.down_bytes += len(chunk)
                writer.write(chunk)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            chunk = b"more"
            while chunk:
                chunk = await reader.read(CHUNK)
                await queue.put((link.send(time.monotonic(), len(chunk), up), chunk))


class _SinceItBegan(Outages):
    """A proxy's outages by :func:`time.monotonic`.

    The links themselves know only that clock: another one while bytes are on their way would hold
    up the bytes behind.
    """

    def __init__(self, proxy: DelayProxy, outages: Outages) -> None:
        super().__init__(outages.windows, seconds=outages.seconds, day_begins=outages.day_begins)
        self._proxy = proxy

    def down(self, what: str, now: float) -> float | None:
        began = self._proxy.began
        until = super().down(what, now - began)
        return None if until is None else began + until


def _event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop that wakes to the microsecond.

    epoll counts in milliseconds and rounds up, at times twice: every delay would be a millisecond
    too long.
    """
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class Selector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # The epoll's own descriptor is ready when one that it looks after is.
            if timeout is not None and timeout > 0 and self.fileno() < _SELECTABLE:
                select.select([self.fileno()], (), (), timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(Selector())
