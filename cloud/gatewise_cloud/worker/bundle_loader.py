"""Load bundles into the models that a worker serves: open, verify, test and time each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gatewise.errors import InputError
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.models.gateway_model import GatewayModel
from gatewise_cloud.models.tier_stages import RequestModel, opened, sample_rows
from gatewise_cloud.worker.batch_sizes import BatchPlans, measure
from gatewise_cloud.worker.batcher import ModelKey
from gatewise_cloud.worker.served_models import ServedModels

if TYPE_CHECKING:
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

WorkerTier = Literal["cloud", "gateway"]


@dataclass(frozen=True, kw_only=True)
class BundleLoader:
    """Loads bundles into `models` and their run times into `plans`.

    The other fields are those of :class:`.Worker`.
    """

    models: ServedModels
    plans: BatchPlans
    tier: WorkerTier = "cloud"
    threads: int = 1
    public_key: str | Path | bytes | None = None
    backend: Callable[[Manifest], Backend] | None = None

    def load(self, bundle: Bundle | str | Path) -> RequestModel:
        """Load a bundle and serve it."""
        bundle = opened(bundle, self.public_key)
        model: RequestModel
        if self.tier == "gateway":
            model = GatewayModel.from_bundle(bundle)
        else:
            backend = None if self.backend is None else self.backend(bundle.manifest)
            model = CloudModel.from_bundle(bundle, threads=self.threads, backend=backend)
        if self.plans.measures and model.key not in self.models:
            self.plans.add(model.key, measure(model.run, sample_rows(bundle)))
        self.models.add(model)
        return model

    def drop(self, key: ModelKey) -> None:
        """Drop a retired model."""
        self.models.drop(key)
        self.plans.drop(key)


def listed(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], *, may_be_none: bool
) -> list[Bundle | str | Path]:
    """One bundle, or several, as a list."""
    from gatewise_export.bundle.bundle import Bundle

    if isinstance(bundles, str | Path | Bundle):
        bundles = [bundles]
    all_of_them = list(bundles)
    if not all_of_them and not may_be_none:
        raise InputError("a worker needs at least one bundle, or a folder to watch")
    return all_of_them
