"""Archive the instances that a worker answers, with a thread that writes shards.

Serving threads only append instances to a list. If the disk is too slow, instances in memory are
thinned at random, in the same way as the folder thins its shards. This bounds the memory, and the
probability of each archived instance stays known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.worker.batcher import Ticket
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, instance_ids, require_pyarrow

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")

#: Size in memory at which a shard is closed.
_SHARD_BYTES: Final = 8 << 20
#: Maximum size of closed shards that wait for the disk.
_MAX_WAITING_BYTES: Final = 64 << 20
#: Approximate size of an instance in memory, in addition to its values.
_ROW_BYTES: Final = 200
#: Time between two searches for shards that have been open for long enough.
_POLL_SECONDS: Final = 1.0
#: Row numbers of a request with one instance, which is the usual case, made once.
_FIRST_ROW: Final = np.zeros(1, np.intp)
#: Maximum number of private devices to remember, which bounds the memory.
_MAX_PRIVATE_DEVICES: Final = 20_000


@dataclass(slots=True, eq=False)
class _StoredRequest:
    """Instances of one request, their rows in it, and the high-cost model's answers."""

    ticket: Ticket
    time: float
    rows: NDArray[np.intp]
    X: NDArray[Any]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]

    def select(self, mask: NDArray[np.bool_]) -> None:
        """Drop the instances that `mask` does not select."""
        self.rows = self.rows[mask]
        self.X = self.X[mask]
        self.labels = self.labels[mask]
        self.probabilities = self.probabilities[mask]


@dataclass(slots=True, eq=False)
class _OpenShard:
    """Instances of one model and shape that are not on disk yet."""

    facts: ShardFacts
    opened_at: float
    requests: list[_StoredRequest] = field(default_factory=list)
    n_bytes: int = 0
    store_probability: float = 1.0


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
    clock : callable
        Returns the time in Unix seconds.
    """

    def __init__(
        self,
        folder: ArchiveFolder,
        *,
        shard_seconds: float,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._shard_seconds = shard_seconds
        self._rng = rng
        self._clock = clock
        self._store_probability = folder.read_store_probability()
        self._open_shards: dict[tuple[Any, ...], _OpenShard] = {}
        self._full_shards: list[_OpenShard] = []
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
        now = self._clock()
        n_rows = len(labels)
        positions = _FIRST_ROW if n_rows == 1 else np.arange(n_rows)
        request = _StoredRequest(
            ticket, now - ticket.late_s, positions, ticket.rows, labels, probabilities
        )
        with self._condition:
            self._private_devices.pop(ticket.device, None)
            if self._store_probability < 1:
                request.select(self._rng.random(n_rows) < self._store_probability)
                self._counts["thinned"] += n_rows - len(request.rows)
                if not len(request.rows):
                    return
            shard_key = (*ticket.model, ticket.rows.dtype, ticket.rows.shape[1])
            shard = self._open_shards.get(shard_key)
            if shard is None:
                shard = _OpenShard(
                    _shard_facts(ticket, manifest), now, store_probability=self._store_probability
                )
                self._open_shards[shard_key] = shard
            shard.requests.append(request)
            shard.n_bytes += request.X.nbytes + _ROW_BYTES * len(request.rows)
            if shard.n_bytes >= _SHARD_BYTES:
                self._full_shards.append(self._open_shards.pop(shard_key))
                self._thin_waiting()
                self._condition.notify_all()

    def _thin_waiting(self) -> None:
        """Thin closed shards that wait for the disk if they take too much memory."""
        while sum(shard.n_bytes for shard in self._full_shards) > _MAX_WAITING_BYTES:
            shard = max(self._full_shards, key=lambda shard: shard.n_bytes)
            n_rows_before = sum(len(request.rows) for request in shard.requests)
            for request in shard.requests:
                request.select(self._rng.random(len(request.rows)) < 0.5)
            shard.requests = [request for request in shard.requests if len(request.rows)]
            n_rows_after = sum(len(request.rows) for request in shard.requests)
            self._counts["thinned"] += n_rows_before - n_rows_after
            shard.store_probability /= 2
            shard.n_bytes = shard.n_bytes * n_rows_after // max(n_rows_before, 1)

    # -- the thread that writes --------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._full_shards and not self._is_closing:
                    self._condition.wait(_POLL_SECONDS)
                now = self._clock()
                for shard_key, shard in list(self._open_shards.items()):
                    if self._is_closing or now - shard.opened_at >= self._shard_seconds:
                        self._full_shards.append(self._open_shards.pop(shard_key))
                next_shard = self._full_shards.pop(0) if self._full_shards else None
                if next_shard is None and self._is_closing:
                    return
            if next_shard is not None and next_shard.requests:
                self._write(next_shard)

    def _write(self, shard: _OpenShard) -> None:
        rows = _archived_rows(shard)
        try:
            facts = msgspec.structs.replace(shard.facts, stored_chance=shard.store_probability)
            self.folder.add(rows, facts, self._clock())
            outcome = "kept"
        except OSError as error:  # a full disk must not stop the worker
            folder = self.folder.path
            _LOG.error("%d instances are not archived in %s: %s", len(rows), folder, error)
            outcome = "lost"
        except Exception:  # neither must a damaged shard
            _LOG.exception("could not archive %d instances in %s", len(rows), self.folder.path)
            outcome = "lost"
        new_probability = self.folder.read_store_probability()
        with self._condition:
            self._counts[outcome] += len(rows)
            self._counts["shards"] += outcome == "kept"
            # a shard has one probability for all instances
            if new_probability != self._store_probability:
                self._store_probability = new_probability
                self._full_shards += self._open_shards.values()
                self._open_shards.clear()


def _shard_facts(ticket: Ticket, manifest: Manifest) -> ShardFacts:
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
    )


def _archived_rows(shard: _OpenShard) -> ArchivedRows:
    """Concatenate the instances of a shard's requests."""
    requests = shard.requests
    counts = [len(request.rows) for request in requests]
    audits = [request.ticket.audit for request in requests]
    confidences = [
        np.nan if audit is None or audit.confidence is None else audit.confidence
        for audit in audits
    ]

    def repeat_per_row(values: list[Any], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), counts)

    return ArchivedRows(
        ids=instance_ids((request.ticket.id, request.rows.tolist()) for request in requests),
        device=repeat_per_row([request.ticket.device for request in requests], np.str_),
        time=repeat_per_row([request.time for request in requests], np.float64),
        X=np.concatenate([request.X for request in requests]),
        cloud_label=np.concatenate([request.labels for request in requests]).astype(np.int32),
        probabilities=np.concatenate([request.probabilities for request in requests]),
        device_label=repeat_per_row(
            [-1 if audit is None else audit.class_index for audit in audits], np.int32
        ),
        confidence=repeat_per_row(confidences, np.float32),
        sent_chance=repeat_per_row(
            [1.0 if audit is None else audit.probability for audit in audits], np.float64
        ),
        stored_chance=np.full(sum(counts), shard.store_probability),
        late=repeat_per_row([request.ticket.late_s > 0 for request in requests], np.bool_),
    )
