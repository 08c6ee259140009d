"""The models that a worker serves: looked up by name and version, added and dropped while it runs.

A model that is dropped takes no new request at once, and stays until those that it took are
answered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_cloud.models.model import TierAnswer
from gatewise_cloud.worker.batcher import ModelKey

__all__ = ["Models", "Served"]


class Served(Protocol):
    """What a worker needs of a model: :class:`.CloudModel` and its kin."""

    local: bool
    """Whether it computes in this process."""

    @property
    def key(self) -> ModelKey:
        """Name and version."""
        ...

    @property
    def n_stages(self) -> int:
        """Stages before the high-cost model, wherever they run."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why it could not answer now; None if it could."""
        ...

    def check(self, X: NDArray[np.floating[Any]]) -> None:
        """Refuse instances that it does not take, without running."""
        ...

    def run(self, X: NDArray[np.float32]) -> TierAnswer:
        """Classify checked instances, at least one."""
        ...

    def close(self) -> None:
        """Let go of what it holds open."""
        ...


class Models(Mapping[ModelKey, Served]):
    """Models by name and version; safe across threads.

    Examples
    --------
    >>> len(Models())
    0
    """

    def __init__(self) -> None:
        # Replaced as a whole, never changed: readers need no lock.
        self._active: dict[ModelKey, Served] = {}
        self._retired: dict[ModelKey, Served] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: ModelKey) -> Served:
        return self._active[key]

    def __iter__(self) -> Iterator[ModelKey]:
        return iter(self._active)

    def __len__(self) -> int:
        return len(self._active)

    def add(self, model: Served) -> None:
        """Serve one more.

        Raises
        ------
        InputError
            If another is called the same.
        """
        with self._lock:
            if model.key in self._active:
                raise InputError(
                    f"two bundles are both called {' '.join(model.key)}: "
                    "give one a version of its own"
                )
            self._retired.pop(model.key, None)
            self._active = {**self._active, model.key: model}

    def retire(self, key: ModelKey) -> None:
        """Take no new request for a model; those under way are still answered."""
        with self._lock:
            self._retired[key] = self._active[key]
            self._active = {k: m for k, m in self._active.items() if k != key}

    def running(self, key: ModelKey) -> Served:
        """Get the model for a request that was taken, be it retired or not."""
        model = self._active.get(key)
        return self._retired[key] if model is None else model

    @property
    def retired(self) -> tuple[ModelKey, ...]:
        """Models that take no new request."""
        return tuple(self._retired)

    def drop(self, key: ModelKey) -> None:
        """Let go of a retired model that no request needs any more."""
        with self._lock:
            model = self._retired.pop(key, None)
        if model is not None:
            model.close()

    def close(self) -> None:
        """Let go of what the models hold open."""
        for model in [*self._active.values(), *self._retired.values()]:
            model.close()
