"""Keep what a worker answers: gather instances in memory, write them as shards on a thread.

Serving threads only append to a list. If the disk does not keep up, instances in memory are thinned
at random, as the folder thins its shards: memory is bounded, and every chance stays known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.worker.batcher import Ticket
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, instance_ids, require_pyarrow

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")

#: Bytes of values at which a shard is closed, and of all open shards at most.
_SHARD_BYTES: Final = 8 << 20
_OPEN_BYTES: Final = 64 << 20
#: Bytes of an instance in memory in addition to its values.
_ROW_BYTES: Final = 200
_POLL_SECONDS: Final = 1.0
_FIRST_ROW: Final = np.zeros(1, np.intp)
#: Largest number of private devices whose names are remembered.
_MAX_PRIVATE: Final = 20_000


@dataclass(slots=True, eq=False)
class _Stored:
    """Instances of one request, their places in it, and the answers of the high-cost model."""

    ticket: Ticket
    time: float
    rows: NDArray[np.intp]
    X: NDArray[Any]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]

    def keep(self, chosen: NDArray[Any]) -> None:
        """Drop all other instances; `chosen` is a mask or indices."""
        self.rows = self.rows[chosen]
        self.X = self.X[chosen]
        self.labels = self.labels[chosen]
        self.probabilities = self.probabilities[chosen]


@dataclass(slots=True, eq=False)
class _OpenShard:
    """Instances of one model and shape that are not written yet."""

    facts: ShardFacts
    opened: float
    requests: list[_Stored] = field(default_factory=list)
    n_bytes: int = 0
    chance: float = 1.0


class ArchiveWriter:
    """Keeps answered instances in a folder; safe across threads.

    Parameters
    ----------
    folder : ArchiveFolder
        Where shards go.
    seconds : float
        Longest time for which a shard stays open: a crash loses no more.
    rng : numpy.random.Generator
        Draws which instances are stored.
    clock : callable
        Unix seconds.
    """

    def __init__(
        self,
        folder: ArchiveFolder,
        *,
        seconds: float,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._seconds = seconds
        self._rng = rng
        self._clock = clock
        self._chance = folder.chance
        self._open: dict[tuple[Any, ...], _OpenShard] = {}
        self._full: list[_OpenShard] = []
        self._private: dict[str, None] = {}  # devices, the latest last
        self._counts = {"kept": 0, "thinned": 0, "lost": 0, "shards": 0}
        self._changed = threading.Condition()  # guards all of the above
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="gatewise-archive", daemon=True)

    @classmethod
    def opened(
        cls, path: Path, *, max_bytes: float, max_days: float, seconds: float
    ) -> ArchiveWriter:
        """Make a writer on a folder with randomness of the operating system; starts its thread.

        Raises InputError where pyarrow is not installed, or if the folder cannot be written.
        """
        # asked for at the start, not with the first shard
        require_pyarrow()
        rng = np.random.default_rng()
        folder = ArchiveFolder(path, max_bytes=max_bytes, max_days=max_days, rng=rng)
        writer = cls(folder, seconds=seconds, rng=rng)
        writer.start()
        return writer

    def start(self) -> None:
        """Begin to write shards as they close."""
        self._thread.start()

    def close(self) -> None:
        """Write all open shards and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def counters(self) -> dict[str, int]:
        """Instances ``kept``, ``thinned`` before a shard and ``lost`` by the disk; ``shards``."""
        with self._changed:
            return dict(self._counts)

    def is_private(self, device: str) -> bool:
        """Whether the latest request of a device was private."""
        with self._changed:
            return device in self._private

    def offer(
        self,
        ticket: Ticket,
        manifest: Manifest,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
    ) -> None:
        """Keep the instances of a request that was answered, unless it is private."""
        if ticket.private:
            with self._changed:
                self._private.pop(ticket.device, None)
                self._private[ticket.device] = None
                if len(self._private) > _MAX_PRIVATE:
                    del self._private[next(iter(self._private))]
            return
        now = self._clock()
        n_rows = len(labels)
        positions = _FIRST_ROW if n_rows == 1 else np.arange(n_rows)
        stored = _Stored(ticket, now - ticket.late_s, positions, ticket.rows, labels, probabilities)
        with self._changed:
            self._private.pop(ticket.device, None)
            if self._chance < 1:
                stored.keep(self._rng.random(n_rows) < self._chance)
                self._counts["thinned"] += n_rows - len(stored.rows)
                if not len(stored.rows):
                    return
            key = (*ticket.model, ticket.rows.dtype, ticket.rows.shape[1])
            shard = self._open.get(key)
            if shard is None:
                shard = _OpenShard(_facts(ticket, manifest), now, chance=self._chance)
                self._open[key] = shard
            shard.requests.append(stored)
            shard.n_bytes += stored.X.nbytes + _ROW_BYTES * len(stored.rows)
            if shard.n_bytes >= _SHARD_BYTES:
                self._full.append(self._open.pop(key))
                self._bound_memory()
                self._changed.notify_all()

    def _bound_memory(self) -> None:
        """Halve closed shards that wait for the disk if they take too much memory."""
        while sum(shard.n_bytes for shard in self._full) > _OPEN_BYTES:
            shard = max(self._full, key=lambda closed: closed.n_bytes)
            n_before = sum(len(stored.rows) for stored in shard.requests)
            for stored in shard.requests:
                stored.keep(self._rng.random(len(stored.rows)) < 0.5)
            shard.requests = [stored for stored in shard.requests if len(stored.rows)]
            n_after = sum(len(stored.rows) for stored in shard.requests)
            self._counts["thinned"] += n_before - n_after
            shard.chance /= 2
            shard.n_bytes = shard.n_bytes * n_after // max(n_before, 1)

    # -- the thread that writes --------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._full and not self._ending:
                    self._changed.wait(_POLL_SECONDS)
                now = self._clock()
                for key, shard in list(self._open.items()):
                    if self._ending or now - shard.opened >= self._seconds:
                        self._full.append(self._open.pop(key))
                next_shard = self._full.pop(0) if self._full else None
                if next_shard is None and self._ending:
                    return
            if next_shard is not None and next_shard.requests:
                self._write(next_shard)

    def _write(self, shard: _OpenShard) -> None:
        rows = _archived(shard)
        try:
            self.folder.add(rows, _with_chance(shard), self._clock())
            outcome = "kept"
        except Exception:  # a full disk, or a damaged shard there, never ends a worker
            _LOG.exception("%d instances could not be kept in %s", len(rows), self.folder.path)
            outcome = "lost"
        chance = self.folder.chance
        with self._changed:
            self._counts[outcome] += len(rows)
            self._counts["shards"] += outcome == "kept"
            if chance != self._chance:  # all instances of a shard have one chance
                self._chance = chance
                self._full += self._open.values()
                self._open.clear()


def _facts(ticket: Ticket, manifest: Manifest) -> ShardFacts:
    assert manifest.cloud is not None  # a model without one is not served
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


def _with_chance(shard: _OpenShard) -> ShardFacts:
    import msgspec

    return msgspec.structs.replace(shard.facts, stored_chance=shard.chance)


def _archived(shard: _OpenShard) -> ArchivedRows:
    """Put the requests of a shard together."""
    requests = shard.requests
    counts = [len(stored.rows) for stored in requests]
    audits = [stored.ticket.audit for stored in requests]
    confidences = [np.nan if a is None or a.confidence is None else a.confidence for a in audits]

    def repeated(values: list[Any], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), counts)

    return ArchivedRows(
        ids=instance_ids((s.ticket.id, s.rows.tolist()) for s in requests),
        device=repeated([stored.ticket.device for stored in requests], np.str_),
        time=repeated([stored.time for stored in requests], np.float64),
        X=np.concatenate([stored.X for stored in requests]),
        cloud_label=np.concatenate([stored.labels for stored in requests]).astype(np.int32),
        probabilities=np.concatenate([stored.probabilities for stored in requests]),
        device_label=repeated([-1 if a is None else a.class_index for a in audits], np.int32),
        confidence=repeated(confidences, np.float32),
        sent_chance=repeated([1.0 if a is None else a.probability for a in audits], np.float64),
        stored_chance=np.full(sum(counts), shard.chance),
        late=repeated([stored.ticket.late_s > 0 for stored in requests], np.bool_),
    )
