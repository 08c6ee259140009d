"""TCP ports of this machine."""

from __future__ import annotations

import socket

__all__ = ["free_port", "listens"]


def free_port() -> int:
    """Find a port of the loopback where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
