"""Archive the instances that a worker answers, with a thread that writes shards.

Serving threads append requests to an open shard, which copies them into its columns a few dozen at
a time. Copies of single requests would let other threads run at each column. A copy of the whole
shard at once would keep thousands of requests alive. If the disk is too slow, shards in memory are
thinned at random, in the same way as the folder thins its shards. This bounds the memory, and the
probability of each archived instance stays known.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.worker.batcher import Ticket
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, require_pyarrow, thin_rows

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")

#: Size in memory at which a shard is closed.
_SHARD_BYTES: Final = 8 << 20
#: Maximum size of closed shards that wait for the disk.
_MAX_WAITING_BYTES: Final = 64 << 20
#: Approximate size of an instance in memory, in addition to its values.
_ROW_BYTES: Final = 200
#: Number of requests that are copied to the columns of a shard together.
_COPIED_REQUESTS: Final = 64
#: Time between two searches for shards that have been open for long enough.
_POLL_SECONDS: Final = 1.0
#: Row numbers of a request with one instance, which is the usual case; made only once.
_FIRST_ROW: Final = np.zeros(1, np.intp)
#: Maximum number of private devices to remember, which bounds the memory.
_MAX_PRIVATE_DEVICES: Final = 20_000


class _AnsweredRequest(NamedTuple):
    """Instances of one request, their row numbers in it, and the high-cost model's answers."""

    ticket: Ticket
    time: float
    row_numbers: NDArray[np.intp]
    X: NDArray[Any]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]

    def select(self, mask: NDArray[np.bool_]) -> _AnsweredRequest:
        """Select some of the instances."""
        return self._replace(
            row_numbers=self.row_numbers[mask],
            X=self.X[mask],
            labels=self.labels[mask],
            probabilities=self.probabilities[mask],
        )


class _OpenShard:
    """Columns for the instances of one shard."""

    def __init__(self, facts: ShardFacts, opened_at: float, first_request: _AnsweredRequest):
        """Allocate columns for instances such as those of the first request."""
        X = first_request.X
        n_inputs = X.shape[1]
        n_classes = len(facts.classes)
        row_bytes = X.itemsize * n_inputs + 4 * n_classes + _ROW_BYTES
        capacity = max(_SHARD_BYTES // row_bytes, len(X))
        self.facts = facts
        self.opened_at = opened_at
        self._n_rows = 0
        self._n_copied_rows = 0
        self._requests: list[_AnsweredRequest] = []  # not copied yet
        self._columns = ArchivedRows(
            request_id=np.empty((capacity, 16), np.uint8),
            request_row=np.empty(capacity, np.uint16),
            device=np.empty(capacity, np.object_),
            time=np.empty(capacity, np.float64),
            X=np.empty((capacity, n_inputs), X.dtype),
            cloud_label=np.empty(capacity, np.int32),
            probabilities=np.empty((capacity, n_classes), np.float32),
            device_label=np.empty(capacity, np.int32),
            confidence=np.empty(capacity, np.float32),
            sent_probability=np.empty(capacity, np.float64),
            stored_probability=np.full(capacity, facts.stored_probability),
            late=np.empty(capacity, np.bool_),
        )

    def fits(self, request: _AnsweredRequest) -> bool:
        """Whether a request fits into the columns."""
        return self._n_rows + len(request.X) <= len(self._columns)

    def append(self, request: _AnsweredRequest) -> None:
        """Append the instances of a request."""
        self._requests.append(request)
        self._n_rows += len(request.X)
        if len(self._requests) >= _COPIED_REQUESTS:
            self._copy_requests()

    def _copy_requests(self) -> None:
        requests = self._requests
        tickets = [request.ticket for request in requests]
        audits = [ticket.audit for ticket in tickets]
        confidences = [None if audit is None else audit.confidence for audit in audits]
        values_by_column: dict[str, list[Any]] = {
            "device": [ticket.device for ticket in tickets],
            "time": [request.time for request in requests],
            "late": [ticket.late_s > 0 for ticket in tickets],
            "device_label": [-1 if audit is None else audit.class_index for audit in audits],
            "confidence": [
                np.nan if confidence is None else confidence for confidence in confidences
            ],
            "sent_probability": [1.0 if audit is None else audit.probability for audit in audits],
        }
        row_counts = [len(request.X) for request in requests]
        columns = self._columns
        new_rows = slice(self._n_copied_rows, self._n_rows)
        for name, column_values in values_by_column.items():
            getattr(columns, name)[new_rows] = np.repeat(column_values, row_counts)
        request_ids = np.frombuffer(b"".join([ticket.id for ticket in tickets]), np.uint8)
        columns.request_id[new_rows] = np.repeat(request_ids.reshape(-1, 16), row_counts, axis=0)
        columns.request_row[new_rows] = np.concatenate(
            [request.row_numbers for request in requests]
        )
        columns.cloud_label[new_rows] = np.concatenate([request.labels for request in requests])
        np.concatenate([request.X for request in requests], out=columns.X[new_rows])
        np.concatenate(
            [request.probabilities for request in requests], out=columns.probabilities[new_rows]
        )
        self._n_copied_rows = self._n_rows
        self._requests = []

    def close(self) -> _ClosedShard:
        """Return the instances."""
        if self._requests:
            self._copy_requests()
        return _ClosedShard(self._columns.take(slice(self._n_rows)), self.facts)


@dataclass(slots=True, eq=False)
class _ClosedShard:
    """Instances that wait for the disk."""

    rows: ArchivedRows
    facts: ShardFacts

    @property
    def n_bytes(self) -> int:
        """Approximate size in memory."""
        return self.rows.X.nbytes + self.rows.probabilities.nbytes + _ROW_BYTES * len(self.rows)

    def thin(self, rng: np.random.Generator) -> int:
        """Drop each instance with probability 1/2; return the number of dropped ones."""
        n_rows = len(self.rows)
        self.rows, self.facts = thin_rows(self.rows, self.facts, rng)
        return n_rows - len(self.rows)


class ArchiveWriter:
    """Archives answered instances in a folder; its methods are thread-safe.

    Parameters
    ----------
    folder : ArchiveFolder
        Folder for the shards.
    shard_seconds : float
        Maximum time for which a shard stays open. A crash loses the instances of this time.
    rng : numpy.random.Generator
        Randomness for thinning.
    """

    def __init__(
        self,
        folder: ArchiveFolder,
        *,
        shard_seconds: float,
        rng: np.random.Generator,
    ) -> None:
        self.folder = folder
        self._shard_seconds = shard_seconds
        self._rng = rng
        self._admission_probability = folder.read_admission_probability()
        self._open_shards: dict[tuple[Any, ...], _OpenShard] = {}
        self._closed_shards: list[_ClosedShard] = []
        self._private_devices: dict[str, None] = {}  # devices, the latest last
        self._counts = {"kept": 0, "thinned": 0, "lost": 0, "shards": 0}
        self._condition = threading.Condition()  # guards all of the above
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="gatewise-archive", daemon=True)

    @classmethod
    def open(
        cls, path: Path, *, max_bytes: float, max_days: float, shard_seconds: float
    ) -> ArchiveWriter:
        """Create a writer for a folder, with a random seed, and start its thread.

        Raises InputError if pyarrow is not installed, or if the folder cannot be written.
        """
        # checked now, so that the error does not wait for the first shard
        require_pyarrow()
        rng = np.random.default_rng()
        folder = ArchiveFolder(path, max_bytes=max_bytes, max_days=max_days, rng=rng)
        writer = cls(folder, shard_seconds=shard_seconds, rng=rng)
        writer.start()
        return writer

    def start(self) -> None:
        """Start the thread that writes closed shards."""
        self._thread.start()

    def close(self) -> None:
        """Write all open shards, and end the thread."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join()

    @property
    def counters(self) -> dict[str, int]:
        """Numbers of instances ``kept``, ``thinned`` in memory and ``lost``, and of ``shards``."""
        with self._condition:
            return dict(self._counts)

    def is_private(self, device: str) -> bool:
        """Whether the latest request of a device was private."""
        with self._condition:
            return device in self._private_devices

    def archive(
        self,
        ticket: Ticket,
        manifest: Manifest,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
    ) -> None:
        """Archive the instances of an answered request, unless it is private."""
        if ticket.is_private:
            with self._condition:
                # move the device to the end of the dict, so that the one silent for longest goes
                self._private_devices.pop(ticket.device, None)
                self._private_devices[ticket.device] = None
                if len(self._private_devices) > _MAX_PRIVATE_DEVICES:
                    del self._private_devices[next(iter(self._private_devices))]
            return
        now = time.time()
        n_rows = len(labels)
        request = _AnsweredRequest(
            ticket=ticket,
            time=now - ticket.late_s,
            row_numbers=_FIRST_ROW if n_rows == 1 else np.arange(n_rows),
            X=ticket.rows,
            labels=labels,
            probabilities=probabilities,
        )
        with self._condition:
            self._private_devices.pop(ticket.device, None)
            if self._admission_probability < 1:
                request = request.select(self._rng.random(n_rows) < self._admission_probability)
                self._counts["thinned"] += n_rows - len(request.X)
                if not len(request.X):
                    return
            shard_key = (*ticket.model, ticket.rows.dtype, ticket.rows.shape[1])
            shard = self._open_shards.get(shard_key)
            if shard is not None and not shard.fits(request):
                self._close_shard(shard_key)
                self._thin_waiting()
                self._condition.notify_all()
                shard = None
            if shard is None:
                facts = _make_shard_facts(ticket, manifest, self._admission_probability)
                shard = self._open_shards[shard_key] = _OpenShard(facts, now, request)
            shard.append(request)

    def _close_shard(self, shard_key: tuple[Any, ...]) -> None:
        self._closed_shards.append(self._open_shards.pop(shard_key).close())

    def _thin_waiting(self) -> None:
        """Thin closed shards that wait for the disk if they take too much memory."""
        while sum(shard.n_bytes for shard in self._closed_shards) > _MAX_WAITING_BYTES:
            shard = max(self._closed_shards, key=lambda shard: shard.n_bytes)
            self._counts["thinned"] += shard.thin(self._rng)

    # -- the thread that writes --------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._closed_shards and not self._is_closing:
                    self._condition.wait(_POLL_SECONDS)
                now = time.time()
                for shard_key, shard in list(self._open_shards.items()):
                    if self._is_closing or now - shard.opened_at >= self._shard_seconds:
                        self._close_shard(shard_key)
                next_shard = self._closed_shards.pop(0) if self._closed_shards else None
                if next_shard is None and self._is_closing:
                    return
            if next_shard is not None and len(next_shard.rows):
                self._write(next_shard)

    def _write(self, shard: _ClosedShard) -> None:
        n_rows = len(shard.rows)
        try:
            self.folder.add(shard.rows, shard.facts, time.time())
            outcome = "kept"
        except OSError as error:  # a full disk must not stop the worker
            _LOG.error("%d instances are not archived in %s: %s", n_rows, self.folder.path, error)
            outcome = "lost"
        except Exception:  # neither must a damaged shard
            _LOG.exception("could not archive %d instances in %s", n_rows, self.folder.path)
            outcome = "lost"
        new_probability = self.folder.read_admission_probability()
        with self._condition:
            self._counts[outcome] += n_rows
            self._counts["shards"] += outcome == "kept"
            # a shard has one probability for all instances
            if new_probability != self._admission_probability:
                self._admission_probability = new_probability
                for shard_key in list(self._open_shards):
                    self._close_shard(shard_key)


def _make_shard_facts(
    ticket: Ticket, manifest: Manifest, admission_probability: float
) -> ShardFacts:
    assert manifest.cloud is not None  # a worker serves only models with a high-cost model
    name, version = ticket.model
    instance = manifest.instance
    n_inputs = ticket.rows.shape[1]
    shape = (n_inputs,) if instance is None else tuple(instance.shape)
    return ShardFacts(
        model=name,
        version=version,
        classes=manifest.classes,
        inputs=manifest.cloud.inputs,
        shape=shape if int(np.prod(shape)) == n_inputs else (n_inputs,),
        accuracy=manifest.active_point.accuracy,
        stored_probability=admission_probability,
    )
