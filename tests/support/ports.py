"""TCP ports on this machine."""

from __future__ import annotations

import http.client
import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Find a free port on the loopback interface.

    It is below the ephemeral ports, which other programs may get before the test uses the port.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a program accepts connections on the port."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def get_page(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Get a page over HTTP; return its status and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
