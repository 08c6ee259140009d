"""A TCP relay in front of a broker that loses what comes, and breaks connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """A relay to `port` of this machine; a context manager. `url` is an MQTT URL of it.

    While `loses` is set, bytes that come from clients vanish.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.loses = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [client, broker]
            self._client = client
            for pair in ((client, broker), (broker, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if not (self.loses and one is self._client):
                    other.sendall(data)

    def cut(self) -> None:
        """Break the connections that there are, and lose nothing more."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.loses = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()
