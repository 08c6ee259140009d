"""A SQLite file of requests that could not be sent, bounded by size and by age.

SQLite's journal makes each change atomic, so that a crash leaves no partial request in the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gatewise.errors import InputError

#: AUTOINCREMENT never uses a number again, so that a caller can continue after the last one.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS requests"
    " (number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, payload BLOB NOT NULL)"
)


class UnsentRequest(NamedTuple):
    """An encoded request, with its number in the file and the Unix time of the device's answer."""

    number: int
    answered_at: float
    payload: bytes


class UnsentStore:
    """A store of unsent requests in the order of their addition. Thread-safe.

    Parameters
    ----------
    path : Path
        The file; only its owner may read it.
    max_bytes : int
        Largest sum of the payloads in bytes. A new request replaces the oldest ones.
    max_age_s : float
        Seconds after which a request is dropped.
    clock : callable
        Returns Unix seconds.

    Attributes
    ----------
    counts : dict of str to int
        Numbers of requests that were stored (``late_kept``), dropped because the file was full
        (``late_dropped``) and dropped because of their age (``late_expired``).

    Raises
    ------
    InputError
        If the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(("late_kept", "late_dropped", "late_expired"), 0)
        try:
            # SQLite gives its journal the permissions of the file.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # With these modes only a power failure can lose the latest requests, and each addition
            # costs no wait for the disk.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_SCHEMA)
            query = "SELECT count(*), coalesce(sum(length(payload)), 0) FROM requests"
            self._n_requests, self._n_bytes = self._database.execute(query).fetchone()
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"--keep-unsent {path}: {error}") from None

    def __len__(self) -> int:
        return int(self._n_requests)

    @property
    def n_bytes(self) -> int:
        """Sum of the payloads in bytes."""
        return int(self._n_bytes)

    def add(self, payload: bytes, answered_at: float) -> None:
        """Store a request; `answered_at` is the Unix time of the device's answer to its instance.

        Raises sqlite3.Error if the disk is full.
        """
        with self._lock:
            if len(payload) > self._max_bytes:
                self.counts["late_dropped"] += 1
                return
            while self._n_bytes + len(payload) > self._max_bytes:
                oldest_request = self._first_after(0)
                if oldest_request is None:  # another process has emptied the file
                    self._n_requests = 0
                    self._n_bytes = 0
                    break
                self._delete(oldest_request)
                self.counts["late_dropped"] += 1
            row = (answered_at, payload)
            self._database.execute("INSERT INTO requests (at, payload) VALUES (?, ?)", row)
            self._n_requests += 1
            self._n_bytes += len(payload)
            self.counts["late_kept"] += 1

    def next_request(self, last_number: int) -> UnsentRequest | None:
        """Return the first request after number `last_number`; drop requests that are too old."""
        with self._lock:
            while (request := self._first_after(last_number)) is not None:
                if self._clock() - request.answered_at <= self._max_age_s:
                    return request
                self._delete(request)
                self.counts["late_expired"] += 1
        return None

    def remove(self, request: UnsentRequest) -> None:
        """Remove a request; do nothing if it was dropped meanwhile."""
        with self._lock:
            self._delete(request)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _first_after(self, last_number: int) -> UnsentRequest | None:
        query = "SELECT number, at, payload FROM requests WHERE number > ? ORDER BY number LIMIT 1"
        columns = self._database.execute(query, (last_number,)).fetchone()
        return None if columns is None else UnsentRequest(*columns)

    def _delete(self, request: UnsentRequest) -> None:
        query = "DELETE FROM requests WHERE number = ?"
        if self._database.execute(query, (request.number,)).rowcount:
            self._n_requests -= 1
            self._n_bytes -= len(request.payload)
