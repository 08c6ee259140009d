"""A folder of shards with a maximum size and age.

Shards that are too old are deleted. If the shards take too many bytes, they are thinned at random:
each instance of a shard stays with probability 1/2, independently of the others, and its
`stored_chance` is halved. The probability of every instance in the archive is therefore known, and
estimates that weight instances by its inverse stay unbiased. Shards with the largest probability
are thinned first.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise_export.archive.shard import (
    ArchivedRows,
    ShardFacts,
    read_facts,
    read_shard,
    write_shard,
)

_SHARDS: Final = "kept-*.parquet"
_CHANCE: Final = "chance.json"
_LOCK: Final = "lock"
#: Share of the maximum size at which thinning ends, so that the next shard needs no thinning.
_TARGET_USE: Final = 0.75
#: Share of the maximum size below which the probability of storing instances doubles.
_LOW_USE: Final = 0.25
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
        self._token = secrets.token_hex(4)
        self._n_written = 0
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"--keep {path}: {error.strerror}") from None
        with self.locked():
            for unfinished in path.glob("*.open"):
                unfinished.unlink()

    @property
    def shards(self) -> list[Path]:
        """Closed shards, oldest first."""
        return shards_in(self.path)

    @property
    def chance(self) -> float:
        """Probability with which the next instance is stored."""
        with suppress(OSError, ValueError, KeyError):
            return float(json.loads((self.path / _CHANCE).read_text())["chance"])
        return 1.0

    @property
    def n_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(map(_size, self.shards))

    def add(self, rows: ArchivedRows, facts: ShardFacts, now: float) -> Path:
        """Write a shard, then delete and thin shards as needed; `now` is in Unix seconds."""
        with self.locked():
            self._n_written += 1
            stamp = f"{int(now * 1000):015d}-{self._token}-{self._n_written:06d}"
            path = self.path / f"kept-{stamp}.parquet"
            write_shard(path, rows, facts)
            self._drop_old(now)
            self._bound()
        return path

    def _drop_old(self, now: float) -> None:
        oldest = now - self.max_days * _SECONDS_A_DAY
        for shard in self.shards:
            if closed_at(shard) < oldest:
                shard.unlink()

    def _bound(self) -> None:
        """Thin shards until they fit, and set the probability of storing the next instances."""
        sizes = {shard: _size(shard) for shard in self.shards}
        total = sum(sizes.values())
        chance = self.chance
        if total > self.max_bytes:
            chances = {shard: read_facts(shard).stored_chance for shard in sizes}
            while sizes and total > _TARGET_USE * self.max_bytes:
                shard = max(chances, key=lambda path: (chances[path], -closed_at(path)))
                chances[shard] /= 2
                total -= sizes[shard]
                self._halve(shard)
                sizes[shard] = _size(shard)
                total += sizes[shard]
                if not sizes[shard]:
                    del sizes[shard], chances[shard]
            self._set_chance(chance / 2)
        elif total < _LOW_USE * self.max_bytes and chance < 1:
            self._set_chance(min(1.0, 2 * chance))

    def _halve(self, path: Path) -> None:
        rows = read_shard(path)
        stays = self._rng.random(len(rows)) < 0.5
        if not stays.any():
            path.unlink()
            return
        facts = read_facts(path)
        thinned = replace(rows.take(stays), stored_chance=rows.stored_chance[stays] / 2)
        halved_facts = msgspec.structs.replace(facts, stored_chance=facts.stored_chance / 2)
        write_shard(path, thinned, halved_facts)

    def _set_chance(self, chance: float) -> None:
        file = self.path / _CHANCE
        unfinished = file.with_suffix(".open")
        unfinished.write_text(json.dumps({"chance": chance}))
        unfinished.replace(file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, so that no other process or thread changes its shards."""
        with (self.path / _LOCK).open("w") as file:
            lock_file(file.fileno())
            yield


def shards_in(path: Path) -> list[Path]:
    """List the closed shards of a folder, oldest first."""
    return sorted(path.glob(_SHARDS))


def closed_at(shard: Path) -> float:
    """Time in Unix seconds at which a shard was closed, read from its name."""
    return int(shard.name.split("-")[1]) / 1000.0


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def read_archive(path: Path) -> dict[tuple[str, str], tuple[ShardFacts, ArchivedRows]]:
    """Read the instances of a folder by model and version; InputError if it has no instances."""
    from gatewise_export.archive.shard import rows_by_model

    shards = shards_in(path)
    if not shards:
        raise InputError(f"{path} has no kept instances: workers write them with --keep {path}")
    return rows_by_model(shards)
