"""TCP proxy on loopback that delays bytes like a real link, for devices of a live run.

:class:`.VirtualLink` computes the delivery times. Each direction has half the round trip and half
the jitter, a limited bandwidth, and a retransmission timeout for each lost segment.
:class:`DelayProxy` owns the sockets. It is accurate to a few milliseconds, which is enough to
emulate Wi-Fi and slower links.

The proxy runs an event loop on its own thread. Other threads only set `start`, which is a single
assignment and needs no lock.
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
from gatewise_sim.fleet.link import CHUNK_BYTES, LinkProfile, VirtualLink
from gatewise_sim.fleet.outages import Outages

#: Number of file descriptors that select(2) supports (FD_SETSIZE).
_SELECT_LIMIT = 1024
#: Largest number of chunks in flight in one direction, 1 MiB in all. Beyond it the sender waits, as
#: it does if a socket buffer is full.
_MAX_CHUNKS_IN_FLIGHT = 64


class DelayProxy:
    """TCP proxy with delays on a free loopback port, as a context manager.

    During an outage of the link connections stay open, and their bytes are retransmitted later.

    Parameters
    ----------
    broker_url : str
        URL of the broker, ``mqtt://HOST:PORT``. TLS cannot be used, because the broker's
        certificate does not name the proxy.
    profile : LinkProfile
        Delay, bandwidth and loss of each connection.
    seed : int
        Seed of jitter and loss, together with the number of the connection.
    outages : Outages, optional
        Outages of the link, with times since `start`.

    Attributes
    ----------
    url : str
        URL for the devices, with the user and password of `broker_url`.
    start : float
        Start of the run on :func:`time.monotonic`. The owner may set it while connections are open;
        before that, it is the time of entry. Infinity delays all outages.

    Raises
    ------
    InputError
        If `broker_url` is not an ``mqtt://`` URL.
    """

    def __init__(
        self,
        broker_url: str,
        profile: LinkProfile,
        *,
        seed: int = 0,
        outages: Outages | None = None,
    ) -> None:
        parsed_url = urlsplit(broker_url)
        if parsed_url.scheme != "mqtt" or not parsed_url.hostname:
            raise InputError(
                f"a link can only be emulated for mqtt://host:port, not for {broker_url!r}"
            )
        self._broker_address = (parsed_url.hostname, parsed_url.port or 1883)
        user_and_password, at_sign, _ = parsed_url.netloc.rpartition("@")
        self._url_beginning = f"mqtt://{user_and_password}{at_sign}127.0.0.1"
        self._profile = profile
        self._seed = seed
        self._outages = None if outages is None else _MonotonicOutages(self, outages)
        self._n_connections = 0
        self.url = ""
        self.start = time.monotonic()

    def __enter__(self) -> Self:
        # Bind before the thread starts, so that `url` is known and errors are raised here.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{self._url_beginning}:{self._listener.getsockname()[1]}"
        self.start = time.monotonic()
        self._loop = _make_event_loop()
        self._stop_event = asyncio.Event()
        self._thread = threading.Thread(target=self._run_loop, name="delay-proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join()

    def _run_loop(self) -> None:
        # the runner cancels the remaining tasks, and then closes the loop
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accept connections until the proxy stops; then abort all of them."""
        # Accept connections in a loop. asyncio's server may deliver another connection after it is
        # closed, and that connection would stay open.
        self._listener.setblocking(False)
        stop_task = asyncio.create_task(self._stop_event.wait())
        device_sockets: list[socket.socket] = []
        connection_tasks: list[asyncio.Task[None]] = []
        while not stop_task.done():
            accept_task = asyncio.create_task(self._loop.sock_accept(self._listener))
            await asyncio.wait((accept_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
            if accept_task.done():
                device_socket, _ = accept_task.result()
                device_sockets.append(device_socket)
                connection_tasks.append(asyncio.create_task(self._serve_connection(device_socket)))
            else:
                accept_task.cancel()
        for task in connection_tasks:
            task.cancel()
        await asyncio.gather(*connection_tasks, return_exceptions=True)
        # A task that is cancelled before its first step has not closed its socket.
        for open_socket in (*device_sockets, self._listener):
            open_socket.close()

    async def _serve_connection(self, device_socket: socket.socket) -> None:
        """Connect to the broker, and forward both directions until one side closes."""
        self._n_connections += 1
        # Each connection has its own draws, so that they do not depend on the other devices.
        rng = random.Random(f"{self._seed}/{self._n_connections}")
        link = VirtualLink(self._profile, rng, self._outages)
        # Nagle's algorithm would add its own delays. asyncio turns it off only for sockets that it
        # creates.
        device_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        device_reader, device_writer = await asyncio.open_connection(
            sock=device_socket, limit=CHUNK_BYTES
        )
        writers = [device_writer]
        try:
            # The kernel has completed the handshake with the device without the delay of the link,
            # so the proxy waits for a round trip.
            now = time.monotonic()
            await asyncio.sleep(link.connection_time(now) - now)
            broker_reader, broker_writer = await asyncio.open_connection(
                *self._broker_address, limit=CHUNK_BYTES
            )
            writers.append(broker_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(device_reader, broker_writer, link, is_uplink=True))
                group.create_task(
                    self._forward(broker_reader, device_writer, link, is_uplink=False)
                )
        except* OSError:
            pass  # one side closed the connection
        except* asyncio.CancelledError:
            for open_writer in writers:
                open_writer.transport.abort()  # do not wait for a peer that does not read
        finally:
            for open_writer in writers:
                open_writer.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: VirtualLink,
        *,
        is_uplink: bool,
    ) -> None:
        """Forward one direction until its sender closes; write each chunk when it is due.

        An empty chunk is the end of the stream, which is delayed like a chunk.
        """
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_CHUNKS_IN_FLIGHT)

        async def write_chunks() -> None:
            while True:
                due_time, chunk = await chunks.get()
                wait_s = due_time - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                if not chunk:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                writer.write(chunk)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(write_chunks())
            chunk = b"more"  # any bytes, for the first round
            while chunk:
                chunk = await reader.read(CHUNK_BYTES)
                due_time = link.send(time.monotonic(), len(chunk), is_uplink=is_uplink)
                await chunks.put((due_time, chunk))


class _MonotonicOutages(Outages):
    """Outages of a proxy with times of :func:`time.monotonic`.

    Links use that clock, because a device connects before the run starts. Each call reads the start
    of the run, because the owner may set it after the link was made.
    """

    def __init__(self, proxy: DelayProxy, outages: Outages) -> None:
        super().__init__(
            outages.windows,
            run_seconds=outages.run_seconds,
            start_time_of_day=outages.start_time_of_day,
        )
        self._proxy = proxy

    def recovery_time(self, component: str, now: float) -> float | None:
        """Get the time at which a component that is down at `now` recovers; None if it is up."""
        start = self._proxy.start
        recovery_time = super().recovery_time(component, now - start)
        return None if recovery_time is None else start + recovery_time


def _make_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop with timeouts in microseconds.

    epoll rounds timeouts up to milliseconds, so every delay would be about a millisecond too long.
    select(2) waits for microseconds.
    """
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class MicrosecondSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # The descriptor of epoll is readable when one of its descriptors is ready. Wait until
            # then with select, and poll epoll without waiting.
            if timeout is not None and timeout > 0 and self.fileno() < _SELECT_LIMIT:
                select.select([self.fileno()], (), (), timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(MicrosecondSelector())
