"""Notify systemd that the service is ready, alive or stopping.

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
    """Messages to the service manager.

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
        microseconds = values.get("WATCHDOG_USEC", "")
        pid = values.get("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        if self.enabled and ours and microseconds.isdecimal() and int(microseconds) > 0:
            self.watchdog = int(microseconds) / 1e6

    def send(self, state: str, status: str = "") -> bool:
        """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``, and a status; whether it was sent.

        A manager that is gone must not stop a device.
        """
        if not self.enabled:
            return False
        text = f"{state}\nSTATUS={' '.join(status.split())}" if status else state
        # An address that begins with @ is in the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(1.0)
                line.sendto(text.encode("utf-8", "replace"), address)
        except OSError:
            return False
        return True


class Heartbeat:
    """Signs of life from a thread, for as long as the device answers.

    The device is alive while it waits for an instance, however long. It is not alive while an
    instance takes longer than `patience` seconds, or after failures alone for that time: no sign is
    given then, and the manager restarts the service. `status` gives the line that goes with each
    sign.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        patience: float,
        status: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._patience = patience
        self._status = status
        self._clock = clock
        self._since: dict[int, float] = {}
        #: Times of the first and the latest failure since the last answer.
        self._first_failure: float | None = None
        self._latest_failure = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the device answers."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Description of the instances that get no answer, or None."""
        starts = list(self._since.values())
        if starts and self._clock() - min(starts) > self._patience:
            return "an instance is long past its deadline"
        first_failure = self._first_failure
        if first_failure is not None and self._latest_failure - first_failure > self._patience:
            seconds = self._latest_failure - first_failure
            return f"no instance could be answered in {seconds:.0f} s: see the errors"
        return None

    def begin(self, number: int) -> None:
        """Note that an instance is under way."""
        self._since[number] = self._clock()

    def end(self, number: int) -> None:
        """Note that it is over."""
        self._since.pop(number, None)

    def note_answer(self) -> None:
        """Note that an instance has been answered."""
        self._first_failure = None

    def note_failure(self) -> None:
        """Note that the device could not answer an instance."""
        now = self._clock()
        # The latest first: another thread may look in between.
        self._latest_failure = now
        if self._first_failure is None:
            self._first_failure = now

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
                self._notifier.send("WATCHDOG=1", self._status())
            if self._ended.wait(period):
                return
