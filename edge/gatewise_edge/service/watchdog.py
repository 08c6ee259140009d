"""Notify systemd: READY=1, STATUS=..., WATCHDOG=1, STOPPING=1.

The protocol of ``sd_notify(3)``: datagrams of ``NAME=value`` lines to the unix socket that
``NOTIFY_SOCKET`` names. Without one, nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

_SHORTEST: Final = 0.05


class Notifier:
    """Messages to the service manager; each method returns whether one was sent.

    `watchdog` is the seconds within which the manager expects a sign of life from this process, by
    ``WATCHDOG_USEC`` and ``WATCHDOG_PID``; None: never.

    >>> Notifier({}).enabled
    False
    >>> Notifier({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}).watchdog
    30.0
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        values = os.environ if environment is None else environment
        self._address = values.get("NOTIFY_SOCKET", "")
        self.enabled = self._address.startswith(("/", "@"))
        self.watchdog: float | None = None
        microseconds, pid = values.get("WATCHDOG_USEC", ""), values.get("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        if self.enabled and ours and microseconds.isdecimal() and int(microseconds) > 0:
            self.watchdog = int(microseconds) / 1e6

    def ready(self, status: str = "") -> bool:
        """Instances are taken from now on."""
        return self._send("READY=1", status)

    def status(self, status: str) -> bool:
        """Show a status."""
        return self._send("", status)

    def alive(self, status: str = "") -> bool:
        """Give a sign of life."""
        return self._send("WATCHDOG=1", status)

    def stopping(self, status: str = "") -> bool:
        """The end has begun."""
        return self._send("STOPPING=1", status)

    def _send(self, state: str, status: str) -> bool:
        """Send a datagram; a manager that is gone must not stop a device."""
        if not self.enabled:
            return False
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split()))
        # An address that begins with @ is in the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(1.0)
                line.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True


class Heartbeat:
    """Signs of life from a thread, for as long as the answering loop lives.

    The loop is alive while it waits for an instance, however long, and while no instance takes
    longer than `patience` seconds. After that no sign is given, and the manager restarts the
    service. `status` gives a line that goes with each sign.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        patience: float,
        status: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._patience = patience
        self._status = status
        self._clock = clock
        self._since: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether no instance under way has exceeded its time."""
        starts = list(self._since.values())
        return not starts or self._clock() - min(starts) <= self._patience

    def begin(self, number: int) -> None:
        """Note that an instance is under way."""
        self._since[number] = self._clock()

    def end(self, number: int) -> None:
        """Note that it is answered."""
        self._since.pop(number, None)

    def __enter__(self) -> Self:
        if self._notifier.watchdog is not None:
            # Half the time that the manager allows, as sd_watchdog_enabled(3) advises.
            period = max(_SHORTEST, self._notifier.watchdog / 2)
            self._thread = threading.Thread(
                target=self._beat, args=(period,), name="gatewise-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _beat(self, period: float) -> None:
        while True:
            if self.alive:
                self._notifier.alive("" if self._status is None else self._status())
            if self._ended.wait(period):
                return
