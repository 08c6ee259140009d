"""Requests that come in parts: joined in any order, in bounded memory, for a bounded time.

Pure: times are seconds on the owner's clock. Not thread-safe: one thread reads messages.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import AnnouncedParts, Part

#: Bytes that a transfer is charged beside its values and its first message.
_OVERHEAD: Final = 1024

TransferKey = tuple[str, bytes]
"""A device and the id of its request."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A request that waits for its parts: the message that announced it, and when it expires."""

    payload: bytes
    parts: AnnouncedParts
    expires: float
    touched: float
    content: bytearray = field(default_factory=bytearray)
    there: set[int] = field(default_factory=set)

    @property
    def charge(self) -> int:
        """Bytes that it may take."""
        return self.parts.size + len(self.payload) + _OVERHEAD


class Joiner:
    """Joins the parts of requests that a worker has taken.

    Parameters
    ----------
    memory : int, default 64 MiB
        Bytes of unfinished requests at most; of these a device may hold as many as it leaves free.
    idle : float, default 30
        Seconds without a part after which a request is forgotten.
    """

    def __init__(self, *, memory: int = 64 << 20, idle: float = 30.0) -> None:
        self._memory = memory
        self._idle = idle
        self._held = 0
        self._by_device: Counter[str] = Counter()
        self._transfers: OrderedDict[TransferKey, Transfer] = OrderedDict()  # by last touch

    def __len__(self) -> int:
        """Unfinished requests."""
        return len(self._transfers)

    def __contains__(self, key: TransferKey) -> bool:
        return key in self._transfers

    @property
    def held(self) -> int:
        """Bytes of unfinished requests."""
        return self._held

    def expect(
        self, key: TransferKey, payload: bytes, parts: AnnouncedParts, *, ttl: float, now: float
    ) -> bool:
        """Wait for the parts that a message announced, for `ttl` seconds; False: no memory free.

        The same message again goes on with what is there; another one with its id starts anew.
        """
        self._forget_old(now)
        before = self._transfers.get(key)
        if before is not None and before.payload == payload:
            before.expires, before.touched = now + ttl, now
            self._transfers.move_to_end(key)
            return True
        self.forget(key)
        made = Transfer(payload, parts, now + ttl, now)
        free = self._memory - self._held
        if made.charge > free or self._by_device[key[0]] > free - made.charge:
            return False
        self._held += made.charge
        self._by_device[key[0]] += made.charge
        self._transfers[key] = made
        return True

    def add(self, key: TransferKey, part: Part, now: float) -> Transfer | None:
        """Take in a part; return the request, let go of here, once all of them are there.

        Raises WireError, with the id, if the part is none of this request's or all of them
        together are not what was announced: then the request is forgotten. KeyError if there is
        no such request.
        """
        self._forget_old(now)
        transfer = self._transfers[key]
        parts, size = transfer.parts, transfer.parts.part_size
        start = part.index * size
        wanted = min(size, parts.size - start)
        if part.index >= parts.count or len(part.content) != wanted:
            self.forget(key)
            why = f"part {part.index} of {parts.count} has {len(part.content)} bytes"
            raise WireError("shape", why, id=part.id)
        transfer.content = transfer.content or bytearray(parts.size)
        transfer.content[start : start + wanted] = part.content
        transfer.there.add(part.index)
        transfer.touched = now
        self._transfers.move_to_end(key)
        if len(transfer.there) < parts.count:
            return None
        self.forget(key)
        if hashlib.sha256(transfer.content).digest() != parts.digest:
            raise WireError("hash", "the parts have another hash than announced", id=part.id)
        return transfer

    def forget(self, key: TransferKey) -> None:
        """Let go of a request, if it is there."""
        transfer = self._transfers.pop(key, None)
        if transfer is not None:
            self._held -= transfer.charge
            self._by_device[key[0]] -= transfer.charge
            if not self._by_device[key[0]]:
                del self._by_device[key[0]]

    def _forget_old(self, now: float) -> None:
        while self._transfers:
            key, oldest = next(iter(self._transfers.items()))
            if now < min(oldest.touched + self._idle, oldest.expires):
                return
            self.forget(key)
