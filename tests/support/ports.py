"""TCP ports of this machine."""

from __future__ import annotations

import http.client
import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Find a port of the loopback where nobody listens.

    Below those that systems give to connections and to servers that ask for any: one of these may
    be taken before it is used here.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def page(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Get a page over HTTP: its status and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
