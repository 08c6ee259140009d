"""Models that a worker serves, by name and version, added and dropped while it runs.

A model that is dropped takes no new request at once, and stays until those that it took are
answered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from gatewise.errors import InputError
from gatewise_cloud.models.tier_stages import RequestModel
from gatewise_cloud.worker.batcher import ModelKey


class ServedModels(Mapping[ModelKey, RequestModel]):
    """Models by name and version; safe across threads.

    >>> len(ServedModels())
    0
    """

    def __init__(self) -> None:
        # Replaced as a whole, never changed: readers need no lock.
        self._active: dict[ModelKey, RequestModel] = {}
        self._retired: dict[ModelKey, RequestModel] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: ModelKey) -> RequestModel:
        return self._active[key]

    def __iter__(self) -> Iterator[ModelKey]:
        return iter(self._active)

    def __len__(self) -> int:
        return len(self._active)

    def add(self, model: RequestModel) -> None:
        """Serve a model."""
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

    def running(self, key: ModelKey) -> RequestModel:
        """Get the model of a request that was accepted, retired or not."""
        model = self._active.get(key)
        return self._retired[key] if model is None else model

    @property
    def retired(self) -> tuple[ModelKey, ...]:
        """Models that take no new request."""
        return tuple(self._retired)

    def drop(self, key: ModelKey) -> None:
        """Close a retired model that no request needs any more."""
        with self._lock:
            model = self._retired.pop(key, None)
        if model is not None:
            model.close()

    def close(self) -> None:
        """Close all models."""
        for model in [*self._active.values(), *self._retired.values()]:
            model.close()
