"""A SQLite file of requests that could not be sent, bounded by size and by age.

When the file is full, each stored request is dropped with probability 1/2, independently of the
others, and the probability of storing later requests is halved. The file records with which
probability it still has each request, so that estimates which weight instances by the inverse are
unbiased. An empty file begins again with probability 1.

SQLite's journal makes each change atomic, so a crash leaves no partial request in the file.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from gatewise.errors import InputError

_LOG = logging.getLogger(__name__)

#: Errors of a disk that is full, damaged, or read-only since an error.
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
#: AUTOINCREMENT never reuses a number, so a caller can continue after the last number it read.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS unsent_requests"
    " (number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, chance REAL NOT NULL,"
    " fallback INTEGER NOT NULL, payload BLOB NOT NULL)"
)


class UnsentRequest(NamedTuple):
    """A stored request.

    Attributes
    ----------
    number : int
        Number in the file.
    answered_at : float
        Unix time of the device's answer.
    stored_probability : float
        Probability with which the file stored it and still has it.
    is_fallback : bool
        Whether the answer was a fallback, and not an answer of a stage to audit.
    payload : bytes
        The encoded request.
    """

    number: int
    answered_at: float
    stored_probability: float
    is_fallback: bool
    payload: bytes


class UnsentStore:
    """A store of unsent requests in the order of their addition. Thread-safe.

    Parameters
    ----------
    path : Path
        The file; only its owner may read it.
    max_bytes : int
        Largest sum of the payloads in bytes. Beyond it a random half of the requests is dropped.
    max_age_s : float
        Seconds after which a request is dropped.
    clock : callable
        Returns Unix seconds.
    rng : random.Random, optional
        Chooses the requests to drop.

    Attributes
    ----------
    counts : dict of str to int
        Numbers of requests that were stored (``late_kept``), dropped or not stored because the file
        was full (``late_dropped``) and dropped because of their age (``late_expired``).
    trouble : str or None
        Reason why the requests are in memory instead of the file: the disk cannot be written.

    Raises
    ------
    InputError
        If the file cannot be opened for another reason, such as a file that is no store.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.Random()
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(("late_kept", "late_dropped", "late_expired"), 0)
        self.trouble: str | None = None
        try:
            # SQLite gives its journal the permissions of the file.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._open(str(path))
        except (OSError, sqlite3.Error) as error:
            problem = f"--keep-unsent {path}: {error}"
            # The error of a full or failing disk, or an OSError that os.open() raised for one.
            is_of_disk = isinstance(error, sqlite3.OperationalError)
            if not is_of_disk and getattr(error, "errno", None) not in _DISK_ERRORS:
                raise InputError(f"{problem}; give another name, or move the file away") from None
            self.trouble = f"{problem}; unsent instances are in memory, until the device ends"
            _LOG.error("%s", self.trouble)
            self._open(":memory:")

    def _open(self, name: str) -> None:
        self._database = sqlite3.connect(name, check_same_thread=False, isolation_level=None)
        try:
            # With these modes an addition does not wait for the disk, and only a power failure can
            # lose the latest requests.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_SCHEMA)
            query = (
                "SELECT count(*), coalesce(sum(length(payload)), 0), coalesce(min(chance), 1.0)"
                " FROM unsent_requests"
            )
            self._n_requests, self._n_bytes, self._stored_probability = self._database.execute(
                query
            ).fetchone()
        except sqlite3.Error:
            self._database.close()
            raise

    def __len__(self) -> int:
        return int(self._n_requests)

    @property
    def n_bytes(self) -> int:
        """Sum of the payloads in bytes."""
        return int(self._n_bytes)

    def add(self, payload: bytes, answered_at: float, *, is_fallback: bool) -> None:
        """Store a request, with the same probability as the requests that the file already has.

        `answered_at` is the Unix time of the device's answer to its instance, and `is_fallback`
        tells whether that is a fallback. Raises sqlite3.Error if the disk is full.
        """
        with self._lock:
            if self._n_requests == 0:
                self._stored_probability = 1.0
            is_admitted = (
                len(payload) <= self._max_bytes and self._rng.random() < self._stored_probability
            )
            while is_admitted and self._n_bytes + len(payload) > self._max_bytes:
                if not self._drop_half():  # another process has emptied the file
                    break
                # The new request must have the same probability as the stored ones.
                is_admitted = self._rng.random() < 0.5
            if not is_admitted:
                self.counts["late_dropped"] += 1
                return
            row = (answered_at, self._stored_probability, is_fallback, payload)
            self._database.execute(
                "INSERT INTO unsent_requests (at, chance, fallback, payload) VALUES (?, ?, ?, ?)",
                row,
            )
            self._n_requests += 1
            self._n_bytes += len(payload)
            self.counts["late_kept"] += 1

    def next_request(self, last_number: int) -> UnsentRequest | None:
        """Return the request after number `last_number`, or None; drop requests that are old."""
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

    def _drop_half(self) -> bool:
        """Drop each request with probability 1/2; return False if there is none."""
        rows = self._database.execute(
            "SELECT number, length(payload) FROM unsent_requests"
        ).fetchall()
        if not rows:
            self._n_requests = 0
            self._n_bytes = 0
            return False
        dropped_rows = [row for row in rows if self._rng.random() < 0.5]
        with self._database:  # commits both changes, or none
            self._database.execute("BEGIN")
            self._database.executemany(
                "DELETE FROM unsent_requests WHERE number = ?",
                [(number,) for number, _ in dropped_rows],
            )
            self._database.execute("UPDATE unsent_requests SET chance = chance / 2")
        self._stored_probability /= 2
        self._n_requests = len(rows) - len(dropped_rows)
        self._n_bytes = sum(size for _, size in rows) - sum(size for _, size in dropped_rows)
        self.counts["late_dropped"] += len(dropped_rows)
        return True

    def _first_after(self, last_number: int) -> UnsentRequest | None:
        query = (
            "SELECT number, at, chance, fallback, payload FROM unsent_requests WHERE number > ?"
            " ORDER BY number LIMIT 1"
        )
        columns = self._database.execute(query, (last_number,)).fetchone()
        if columns is None:
            return None
        number, answered_at, stored_probability, fallback, payload = columns
        return UnsentRequest(number, answered_at, stored_probability, bool(fallback), payload)

    def _delete(self, request: UnsentRequest) -> None:
        query = "DELETE FROM unsent_requests WHERE number = ?"
        if self._database.execute(query, (request.number,)).rowcount:
            self._n_requests -= 1
            self._n_bytes -= len(request.payload)
