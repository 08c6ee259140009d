"""A folder of shards with a maximum size and age.

Shards that are too old are deleted. If the shards take too many bytes, they are thinned at random:
each instance of a shard stays with probability 1/2, independently of the others, and its
`stored_probability` is halved. The probability of every instance in the archive therefore stays
known, and estimates that weight instances by its inverse stay unbiased. The shards with the largest
probability are thinned first.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np

from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise_export.archive.shard import (
    ArchivedRows,
    Release,
    ShardFacts,
    read_facts,
    read_shard,
    thin_rows,
    write_shard,
)
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger("gatewise_export")

_SHARD_PATTERN: Final = "kept-*.parquet"
_PROBABILITY_FILE: Final = "chance.json"
_LOCK_FILE: Final = "lock"
#: Share of the maximum size at which thinning ends, so that the next shard needs no thinning.
_THINNED_SHARE: Final = 0.75
#: Share of the maximum size below which the admission probability doubles.
_SPARSE_SHARE: Final = 0.25
_SECONDS_A_DAY: Final = 86_400.0


class ArchiveFolder:
    """Shards in a folder with a maximum size and age. Several processes may write to it.

    Parameters
    ----------
    path : Path
        The folder, which is created if it does not exist.
    max_bytes : float
        Maximum size of all shards together; a shard that is being written may exceed it.
    max_days : float
        Maximum age of a shard.
    rng : numpy.random.Generator
        Randomness for thinning.
    """

    def __init__(
        self, path: Path, *, max_bytes: float, max_days: float, rng: np.random.Generator
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.max_days = max_days
        self._rng = rng
        self._writer_token = secrets.token_hex(4)
        self._n_shards_written = 0
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"--keep {path}: {error.strerror}") from None
        with self.lock():
            for unfinished_file in path.glob("*.open"):
                unfinished_file.unlink()

    def read_admission_probability(self) -> float:
        """Read the probability with which writers store the next instances."""
        with suppress(OSError, ValueError, KeyError):
            return float(json.loads((self.path / _PROBABILITY_FILE).read_text())["chance"])
        return 1.0

    def size_bytes(self) -> int:
        """Total size of all shards."""
        return sum(map(_file_size, shards_in(self.path)))

    def add(self, rows: ArchivedRows, facts: ShardFacts, now: float) -> Path:
        """Delete old shards, write a shard, and thin shards as needed; `now` is in Unix seconds.

        Raises OSError if the shard cannot be written.
        """
        with self.lock():
            self._n_shards_written += 1
            milliseconds = f"{int(now * 1000):015d}"
            name = f"kept-{milliseconds}-{self._writer_token}-{self._n_shards_written:06d}.parquet"
            path = self.path / name
            # delete them first, because they may be what fills the disk
            self._delete_old_shards(now)
            try:
                write_shard(path, rows, facts)
            finally:
                try:
                    self._limit_size()
                except OSError as error:  # the shard is stored all the same
                    _LOG.error("cannot thin the instances in %s: %s", self.path, error)
        return path

    def _delete_old_shards(self, now: float) -> None:
        cutoff_time = now - self.max_days * _SECONDS_A_DAY
        for shard in shards_in(self.path):
            if closed_at(shard) < cutoff_time:
                shard.unlink()

    def _limit_size(self) -> None:
        """Thin shards until they fit, and adapt the admission probability."""
        total_bytes = self.size_bytes()
        admission_probability = self.read_admission_probability()
        if total_bytes > self.max_bytes:
            self._thin_shards(_THINNED_SHARE * self.max_bytes)
            self._write_admission_probability(admission_probability / 2)
        elif total_bytes < _SPARSE_SHARE * self.max_bytes and admission_probability < 1:
            self._write_admission_probability(min(1.0, 2 * admission_probability))

    def _thin_shards(self, max_bytes: float) -> None:
        """Thin the shards with the largest probability until all have at most `max_bytes`.

        Damaged shards stay as they are.
        """
        size_of = {shard: _file_size(shard) for shard in shards_in(self.path)}
        probability_of: dict[Path, float] = {}
        for shard in size_of:
            with _log_damage():
                probability_of[shard] = read_facts(shard).stored_probability
        while probability_of and sum(size_of.values()) > max_bytes:
            # of several shards with the largest probability, the oldest
            shard = max(probability_of, key=lambda path: (probability_of[path], -closed_at(path)))
            probability = probability_of.pop(shard)
            with _log_damage():
                self._thin_shard(shard)
                size_of[shard] = _file_size(shard)
                if size_of[shard]:
                    probability_of[shard] = probability / 2

    def _thin_shard(self, path: Path) -> None:
        """Thin a shard, and delete it if no instance remains."""
        rows, facts = thin_rows(read_shard(path), read_facts(path), self._rng)
        if len(rows):
            write_shard(path, rows, facts)
        else:
            path.unlink()

    def _write_admission_probability(self, probability: float) -> None:
        content = json.dumps({"chance": probability}).encode()
        replace_file(self.path / _PROBABILITY_FILE, content)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, so that no other process or thread changes its shards."""
        with (self.path / _LOCK_FILE).open("w") as file:
            lock_file(file.fileno())
            yield


@contextmanager
def _log_damage() -> Iterator[None]:
    """Log an InputError of the block about a damaged shard."""
    try:
        yield
    except InputError as error:
        _LOG.warning("a shard cannot be thinned: %s", error)


def shards_in(path: Path) -> list[Path]:
    """List the closed shards of a folder, oldest first."""
    return sorted(path.glob(_SHARD_PATTERN))


def closed_at(shard: Path) -> float:
    """Unix time at which a shard was closed, read from its name."""
    return int(shard.name.split("-")[1]) / 1000.0


def _file_size(path: Path) -> int:
    """Size of a file in bytes; 0 if it does not exist."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def shards_by_release(path: Path) -> dict[Release, list[Path]]:
    """List the shards of each release, oldest first; InputError if the folder has no shard."""
    shards_of: dict[Release, list[Path]] = {}
    contents_of: dict[Release, tuple[object, ...]] = {}
    for shard in shards_in(path):
        facts = read_facts(shard)
        contents = facts.classes, facts.inputs
        if contents_of.setdefault(facts.release, contents) != contents:
            raise InputError(
                f"{path} has instances of two bundles named {'/'.join(facts.release)}, with "
                "different classes or features: keep each bundle's shards in a folder of its own"
            )
        shards_of.setdefault(facts.release, []).append(shard)
    if not shards_of:
        raise InputError(
            f"{path} has no kept instances: workers with --keep {path} write them every "
            "keep_seconds (300 by default), and when they stop"
        )
    return shards_of


def find_release(
    path: Path, shards_of: Mapping[Release, list[Path]], version: str | None
) -> Release:
    """Find the release with a version, or MODEL/VERSION; by default that of the newest shard.

    Raises InputError with the releases in the folder if not exactly one has this version.
    """
    if version is None:
        return max(shards_of, key=lambda release: shards_of[release][-1].name)
    matches = [release for release in shards_of if version in (release[1], "/".join(release))]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(map("/".join, shards_of))
    problem = f"not {version}" if not matches else f"and {version} names several of them"
    raise InputError(f"{path} has {names}, {problem}: give --version MODEL/VERSION")


def read_rows(shards: Iterable[Path]) -> ArchivedRows:
    """Read and concatenate the instances of one or more shards of a release."""
    return ArchivedRows.concatenate([read_shard(shard) for shard in shards])
