"""A TCP relay in front of a broker that can drop bytes and break connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self


class Relay:
    """A relay to a local `port`, as a context manager; `url` is its MQTT URL.

    While `drops_bytes` is set, it drops the bytes of the latest client: the link of a device seems
    connected, but is silent. While `holds_bytes` is set,
    it forwards no bytes, and forwards them later.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.drops_bytes = False
        self.holds_bytes = False
        self._latest_client: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        self._lock = threading.Lock()  # of the three fields above
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the broker does not run
                client.close()
                continue
            with self._lock:
                if self._is_closed:  # since the client was accepted
                    client.close()
                    broker.close()
                    return
                self._sockets += [client, broker]
                self._latest_client = client
            for source, destination in ((client, broker), (broker, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                arguments = (source, destination)
                threading.Thread(target=self._copy, args=arguments, daemon=True).start()

    def _copy(self, source: socket.socket, destination: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received_bytes := source.recv(65536):
                while self.holds_bytes:
                    time.sleep(0.02)  # far less than any deadline
                if not (self.drops_bytes and source is self._latest_client):
                    destination.sendall(received_bytes)
        for open_socket in (source, destination):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def break_connections(self) -> None:
        """Break all connections, and forward bytes again."""
        self.holds_bytes = False
        with self._lock:
            sockets = self._sockets
            self._sockets = []
        for open_socket in sockets:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        self.drops_bytes = False

    def close(self) -> None:
        """Accept no more clients, and break all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()
        with self._lock:
            self._is_closed = True
        self.break_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
