"""Notify systemd that the service is ready, alive or stopping.

The protocol is that of ``sd_notify(3)``: datagrams with lines ``NAME=value`` to the unix socket in
the variable ``NOTIFY_SOCKET``. Without this variable nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

#: Shortest time between two notifications of the watchdog, in seconds. Without it a wrong unit in
#: the configuration would keep a processor busy.
_MIN_PERIOD_S: Final = 0.05


class Notifier:
    """A sender of notifications to the service manager.

    `watchdog_s` is the time in seconds within which the manager expects a notification that this
    process is alive, or None if it expects none (``WATCHDOG_USEC`` and ``WATCHDOG_PID``).

    >>> Notifier({}).is_enabled
    False
    >>> Notifier({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}).watchdog_s
    30.0
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self._address = variables.get("NOTIFY_SOCKET", "")
        self.is_enabled = self._address.startswith(("/", "@"))
        self.watchdog_s: float | None = None
        microseconds = variables.get("WATCHDOG_USEC", "")
        pid = variables.get("WATCHDOG_PID", "")
        is_addressed = not pid or pid == str(os.getpid())
        if self.is_enabled and is_addressed and microseconds.isdecimal() and int(microseconds) > 0:
            self.watchdog_s = int(microseconds) / 1e6

    def send(self, state: str, status: str = "") -> bool:
        """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``, with a status.

        Returns whether it was sent. A failure raises no error, because the device must also run
        without a manager.
        """
        if not self.is_enabled:
            return False
        message = f"{state}\nSTATUS={' '.join(status.split())}" if status else state
        # An address with a leading @ is in the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)  # a manager that hangs must not stop the device
                sender.sendto(message.encode("utf-8", "replace"), address)
        except OSError:
            return False
        return True


class Heartbeat:
    """A thread that notifies the service manager while the device is alive.

    The device is not alive if an instance takes longer than `max_seconds`, or if all instances have
    failed for longer than that. While it waits for an instance, it is alive, however long it waits.
    If it is not alive, the manager gets no notification and restarts the service. `status` returns
    the text of a notification.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        max_seconds: float,
        status: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._max_seconds = max_seconds
        self._status = status
        self._clock = clock
        #: Start times of the running instances, by the number of the instance.
        self._start_times: dict[int, float] = {}
        #: Times of the first and the latest failure since the last answer.
        self._first_failure_at: float | None = None
        self._latest_failure_at = 0.0
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the device answers instances."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Description of the problem if the device does not answer instances, or None."""
        start_times = list(self._start_times.values())
        if start_times and self._clock() - min(start_times) > self._max_seconds:
            return "an instance is long past its deadline"
        first_failure_at = self._first_failure_at
        if first_failure_at is not None:
            failing_seconds = self._latest_failure_at - first_failure_at
            if failing_seconds > self._max_seconds:
                return f"no instance could be answered in {failing_seconds:.0f} s: see the log"
        return None

    def begin(self, instance_number: int) -> None:
        """Record the start of an instance."""
        self._start_times[instance_number] = self._clock()

    def end(self, instance_number: int) -> None:
        """Record the end of an instance."""
        self._start_times.pop(instance_number, None)

    def note_answer(self) -> None:
        """Record that an instance was answered."""
        self._first_failure_at = None

    def note_failure(self) -> None:
        """Record that the device could not answer an instance."""
        now = self._clock()
        # Set the latest time first, because another thread may read both in between.
        self._latest_failure_at = now
        if self._first_failure_at is None:
            self._first_failure_at = now

    def __enter__(self) -> Self:
        if self._notifier.watchdog_s is not None:
            # Half the time that the manager allows, as sd_watchdog_enabled(3) advises.
            period_s = max(_MIN_PERIOD_S, self._notifier.watchdog_s / 2)
            self._thread = threading.Thread(
                target=self._beat, args=(period_s,), name="gatewise-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)  # longer than one notification

    def _beat(self, period_s: float) -> None:
        while True:
            if self.is_alive:
                self._notifier.send("WATCHDOG=1", self._status())
            if self._has_ended.wait(period_s):
                return
