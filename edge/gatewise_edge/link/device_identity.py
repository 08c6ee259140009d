"""Detection of two devices with one id, which take each other's connection over.

A broker ends a connection when another one comes with its client id (MQTT 3.1.1, section 3.1.4);
the client connects again, and the two take turns, each losing half of its answers. Each process
retains a random mark on its session topic. A process that has read its own mark there, and later
reads another one, shares its id.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

_LOG = logging.getLogger(__name__)

#: Seconds since the last takeover after which the trouble is over: reconnects take up to a minute.
_TROUBLE_SECONDS: Final = 120.0
#: The first may be a broker that came back with messages retained long ago.
_MIN_TAKEOVERS: Final = 2


class DeviceIdentity:
    """Mark of a process on its device's session topic; counts marks of other processes there.

    Attributes
    ----------
    mark : bytes
        32 hexadecimal digits.
    takeovers : int
        How often another mark had taken the place of this one.
    """

    def __init__(self, device: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.mark = secrets.token_hex(16).encode()
        self.takeovers = 0
        self._device = device
        self._clock = clock
        self._is_on_topic = False
        self._last_takeover = 0.0
        self._reading = threading.Lock()

    def read(self, payload: bytes) -> None:
        """Read a message of the session topic; messages come in order."""
        with self._reading:
            if payload == self.mark:
                self._is_on_topic = True
                return
            if not self._is_on_topic or not payload:  # an older process, or one that has ended
                return
            self._is_on_topic = False
            self.takeovers += 1
            self._last_takeover = self._clock()
            count = self.takeovers
        # A takeover a second would fill the log: at 2, 4, 8, ...
        if count >= _MIN_TAKEOVERS and count & (count - 1) == 0:
            _LOG.error("%s (%d takeovers of the connection)", self._description(), count)

    @property
    def trouble(self) -> str | None:
        """Description of another device that uses this id; None if none was noticed lately."""
        if (
            self.takeovers < _MIN_TAKEOVERS
            or self._clock() - self._last_takeover > _TROUBLE_SECONDS
        ):
            return None
        return self._description()

    def _description(self) -> str:
        return (
            f"another device uses the id {self._device}: the broker gives each the connection in "
            "turn; give each device another id (--device)"
        )
