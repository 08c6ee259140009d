"""From a bundle to a model that a worker serves: opened, verified, proved, timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gatewise.errors import InputError
from gatewise_cloud.models.model import CloudModel, opened, sample_rows
from gatewise_cloud.worker.batcher import ModelKey
from gatewise_cloud.worker.batching import Pace, measure
from gatewise_cloud.worker.gateway import GatewayModel
from gatewise_cloud.worker.models import Models, Served

if TYPE_CHECKING:
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

__all__ = ["Loader", "WorkerTier", "listed"]

WorkerTier = Literal["cloud", "gateway"]


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How a worker's bundles become models.

    Parameters
    ----------
    models : Models
        Where they are entered.
    pace : Pace
        Gets their times.
    tier : {"cloud", "gateway"}
        Which part of the bundles is served.
    threads : int
        Threads within one run.
    public_key : str, Path or bytes, optional
        Only bundles that are signed by its owner are taken.
    backend : callable, optional
        Makes the backend of a bundle, given its manifest, in place of onnxruntime.
    """

    models: Models
    pace: Pace
    tier: WorkerTier = "cloud"
    threads: int = 1
    public_key: str | Path | bytes | None = None
    backend: Callable[[Manifest], Backend] | None = None

    def load(self, bundle: Bundle | str | Path) -> Served:
        """Open, verify, prove and time a bundle, and serve it.

        Raises
        ------
        BundleError, ModelError, SelfTestError
            If it cannot be read or served.
        InputError
            If a bundle of the same name and version is served.
        """
        bundle = opened(bundle, self.public_key)
        model: Served
        if self.tier == "gateway":
            model = GatewayModel.from_bundle(bundle)
        else:
            backend = None if self.backend is None else self.backend(bundle.manifest)
            model = CloudModel.from_bundle(bundle, threads=self.threads, backend=backend)
        if self.pace.measures and model.key not in self.models:
            self.pace.enter(model.key, measure(model.run, sample_rows(bundle)))
        self.models.add(model)
        return model

    def drop(self, key: ModelKey) -> None:
        """Let go of a retired model."""
        self.models.drop(key)
        self.pace.leave(key)


def listed(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], *, may_be_none: bool
) -> list[Bundle | str | Path]:
    """One bundle, or several, as a list.

    Raises
    ------
    InputError
        If there is none and there must be one.
    """
    from gatewise_export.bundle.bundle import Bundle

    if isinstance(bundles, str | Path | Bundle):
        bundles = [bundles]
    all_of_them = list(bundles)
    if not all_of_them and not may_be_none:
        raise InputError("a worker needs at least one bundle, or a folder to watch")
    return all_of_them
