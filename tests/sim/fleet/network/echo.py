"""A server that sends back what comes, behind which proxies are tested."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@contextlib.contextmanager
def echo_server(handler: type[socketserver.BaseRequestHandler] = Echo) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"mqtt://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port), timeout=60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client
