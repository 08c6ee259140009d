"""Models that a worker serves, by name and version; they can change while it runs.

A retired model accepts no new requests. It stays loaded until its last request is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, ValuesView
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.errors import InputError
from gatewise.graph_loading import MAX_LOAD_LIMITS, LoadLimits
from gatewise.imports import CPU, check_provider
from gatewise_cloud.models.cloud_model import CloudModel, open_bundle
from gatewise_cloud.worker.batcher import ModelKey

if TYPE_CHECKING:
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest


class ServedModels(Mapping[ModelKey, CloudModel]):
    """Mapping from name and version to a model; thread-safe.

    For `n_threads`, `provider`, `public_key` and `make_backend` see :class:`.Worker`. Loading a
    graph may not exceed the `load_limits`.
    """

    def __init__(
        self,
        *,
        n_threads: int = 1,
        provider: str = CPU,
        public_key: str | Path | bytes | None = None,
        make_backend: Callable[[Manifest], Backend] | None = None,
        load_limits: LoadLimits = MAX_LOAD_LIMITS,
    ) -> None:
        check_provider(provider)
        self._n_threads = n_threads
        self._provider = provider
        self._public_key = public_key
        self._make_backend = make_backend
        self._load_limits = load_limits
        # this dict is replaced and never changed, so that readers need no lock
        self._active_models: dict[ModelKey, CloudModel] = {}
        self._retired_models: dict[ModelKey, list[CloudModel]] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: ModelKey) -> CloudModel:
        return self._active_models[key]

    def __iter__(self) -> Iterator[ModelKey]:
        return iter(self._active_models)

    def __len__(self) -> int:
        return len(self._active_models)

    def values(self) -> ValuesView[CloudModel]:
        """Return the models at one instant, which stay the same while a caller iterates."""
        return self._active_models.values()

    def load(self, bundle: Bundle | str | Path) -> ModelKey:
        """Open a bundle, verify and test its model, and begin to serve it."""
        bundle = open_bundle(bundle, self._public_key)
        backend = None if self._make_backend is None else self._make_backend(bundle.manifest)
        model = CloudModel.from_bundle(
            bundle,
            n_threads=self._n_threads,
            provider=self._provider,
            backend=backend,
            load_limits=self._load_limits,
        )
        key = model.key
        with self._lock:
            if key in self._active_models:
                model.close()
                raise InputError(
                    f"{' '.join(key)} is served already: give bundle {bundle.path.name} another "
                    "name or version"
                )
            # a retired model of this key may have requests, so it stays until `drop`
            self._active_models = {**self._active_models, key: model}
        return key

    def retire(self, key: ModelKey) -> None:
        """Accept no new requests for a model; accepted requests are still answered."""
        with self._lock:
            model = self._active_models[key]
            self._retired_models.setdefault(key, []).append(model)
            self._active_models = {
                other_key: other_model
                for other_key, other_model in self._active_models.items()
                if other_key != key
            }

    def find(self, key: ModelKey) -> CloudModel:
        """Get the model of an accepted request, which may be retired."""
        # no lock: `retire` adds a model to the retired ones before it removes it from the active
        model = self._active_models.get(key)
        return self._retired_models[key][-1] if model is None else model

    @property
    def retired_keys(self) -> tuple[ModelKey, ...]:
        """Keys of models that accept no new requests."""
        return tuple(self._retired_models)

    def drop(self, key: ModelKey) -> None:
        """Close the retired models of a key after its last request."""
        with self._lock:
            retired_models = self._retired_models.pop(key, [])
        for model in retired_models:
            model.close()

    def close(self) -> None:
        """Close all models."""
        for model in [*self._active_models.values(), *chain(*self._retired_models.values())]:
            model.close()
