"""Detection of two processes with the same device id, which disconnect each other in turn.

A broker ends a client's connection when another client connects with the same id (MQTT 3.1.1,
section 3.1.4). The first client then reconnects and ends the connection of the second. Each loses
half of its answers. To detect this, each process publishes a retained random mark on the device's
session topic whenever it connects, and clears the topic when it ends. If a process reads another
mark there after its own, another process has taken over its connection.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Final

_LOG = logging.getLogger(__name__)

#: Time after the last takeover at which the warning ends, in seconds. It is longer than the longest
#: pause before a reconnect, which is 90 s.
_WARNING_SECONDS: Final = 120.0
#: Number of takeovers after which there is a warning. A broker that restarts with old retained
#: messages may cause a single takeover.
_MIN_TAKEOVERS: Final = 2


class DeviceIdentity:
    """The mark of a process on its device's session topic, and the number of takeovers.

    Attributes
    ----------
    mark : bytes
        The process's mark, 32 hexadecimal digits.
    n_takeovers : int
        Number of times that another mark has replaced this one.
    """

    def __init__(self, device: str) -> None:
        self.mark = secrets.token_hex(16).encode()
        self.n_takeovers = 0
        self._device = device
        self._has_read_mark = False
        self._last_takeover_at = 0.0
        self._lock = threading.Lock()

    def receive(self, payload: bytes) -> None:
        """Read a message of the session topic, and count a takeover."""
        with self._lock:
            if payload == self.mark:
                self._has_read_mark = True
                return
            # the mark of an earlier process, or an empty message of a process that ends
            if not self._has_read_mark or not payload:
                return
            self._has_read_mark = False
            self.n_takeovers += 1
            self._last_takeover_at = time.monotonic()
            n_takeovers = self.n_takeovers
        # takeovers may come every second, so log only the 2nd, 4th, 8th and so on
        if n_takeovers >= _MIN_TAKEOVERS and n_takeovers & (n_takeovers - 1) == 0:
            _LOG.error("%s (%d takeovers of the connection)", self._warning_text(), n_takeovers)

    @property
    def trouble(self) -> str | None:
        """Warning that another device uses this id; None if no takeover is recent."""
        with self._lock:
            n_takeovers = self.n_takeovers
            seconds_since = time.monotonic() - self._last_takeover_at
        if n_takeovers < _MIN_TAKEOVERS or seconds_since > _WARNING_SECONDS:
            return None
        return self._warning_text()

    def _warning_text(self) -> str:
        return (
            f"another process uses the device id {self._device}, so that each ends the other's "
            "connection: end one of them, or give each its own --device and certificate"
        )
