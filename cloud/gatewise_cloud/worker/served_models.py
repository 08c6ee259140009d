"""Models that a worker serves, by name and version; they can change while it runs.

A retired model accepts no new requests. It stays loaded until its last request is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.errors import InputError
from gatewise.graph_loading import LOAD_BOUND, LoadLimits
from gatewise.imports import CPU, check_provider
from gatewise_cloud.models.cloud_model import CloudModel, open_bundle
from gatewise_cloud.worker.batcher import ModelKey

if TYPE_CHECKING:
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest


class ServedModels(Mapping[ModelKey, CloudModel]):
    """Mapping from name and version to a model; thread-safe.

    For `threads`, `provider`, `public_key` and `backend` see :class:`.Worker`. Loading a graph may
    not exceed the `load_bound`.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        provider: str = CPU,
        public_key: str | Path | bytes | None = None,
        backend: Callable[[Manifest], Backend] | None = None,
        load_bound: LoadLimits = LOAD_BOUND,
    ) -> None:
        check_provider(provider)
        self._threads = threads
        self._provider = provider
        self._public_key = public_key
        self._backend = backend
        self._load_bound = load_bound
        # this dict is replaced and never changed, so that readers need no lock
        self._active: dict[ModelKey, CloudModel] = {}
        self._retired: dict[ModelKey, CloudModel] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: ModelKey) -> CloudModel:
        return self._active[key]

    def __iter__(self) -> Iterator[ModelKey]:
        return iter(self._active)

    def __len__(self) -> int:
        return len(self._active)

    def values(self) -> ValuesView[CloudModel]:
        """Return the models at one instant, which stay the same while a caller iterates."""
        return self._active.values()

    def load(self, bundle: Bundle | str | Path) -> ModelKey:
        """Open a bundle, verify and test its model, and begin to serve it."""
        bundle = open_bundle(bundle, self._public_key)
        backend = None if self._backend is None else self._backend(bundle.manifest)
        model = CloudModel.from_bundle(
            bundle,
            threads=self._threads,
            provider=self._provider,
            backend=backend,
            load_bound=self._load_bound,
        )
        key = model.key
        with self._lock:
            if key in self._active:
                model.close()
                raise InputError(
                    f"{' '.join(key)} is served already: give this bundle another version"
                )
            self._retired.pop(key, None)
            self._active = {**self._active, key: model}
        return key

    def retire(self, key: ModelKey) -> None:
        """Accept no new requests for a model; accepted requests are still answered."""
        with self._lock:
            self._retired[key] = self._active[key]
            self._active = {other: model for other, model in self._active.items() if other != key}

    def find(self, key: ModelKey) -> CloudModel:
        """Get the model of an accepted request, which may be retired."""
        model = self._active.get(key)
        return self._retired[key] if model is None else model

    @property
    def retired(self) -> tuple[ModelKey, ...]:
        """Models that accept no new requests."""
        return tuple(self._retired)

    def drop(self, key: ModelKey) -> None:
        """Close a retired model after its last request."""
        with self._lock:
            model = self._retired.pop(key, None)
        if model is not None:
            model.close()

    def close(self) -> None:
        """Close all models."""
        for model in [*self._active.values(), *self._retired.values()]:
            model.close()
