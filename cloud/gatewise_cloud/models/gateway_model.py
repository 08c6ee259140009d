"""The part of a bundle that a gateway serves: the stages that the bundle places there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.errors import ModelError
from gatewise_cloud.models.tier_stages import (
    RequestModel,
    TierAnswer,
    TierStages,
    opened,
    stages_of,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle


class GatewayModel(RequestModel):
    """The `stages` that `bundle` places on a gateway. Make one with :meth:`from_bundle`."""

    def __init__(self, bundle: Bundle, stages: TierStages) -> None:
        super().__init__(bundle.manifest)
        self._stages = stages

    @classmethod
    def from_bundle(
        cls, bundle: Bundle | str | Path, *, public_key: str | Path | bytes | None = None
    ) -> GatewayModel:
        """Load the gateway stages of `bundle` and prove them on its sample.

        With a `public_key` it must be signed by its owner. BundleError if the bundle cannot be
        read, or a hash or the signature does not hold; ModelError if it places no stage on a
        gateway, or has no high-cost model; SelfTestError if a stage computes otherwise than where
        the bundle was packed.
        """
        bundle = opened(bundle, public_key)
        manifest = bundle.manifest
        name = manifest.title
        if not stages_of(manifest, "gateway"):
            raise ModelError(
                name,
                f"bundle {name} places no stage on a gateway: train it with "
                'tiers={"device": 1, "gateway": None}, or serve it without --tier gateway',
            )
        if manifest.cloud is None:
            raise ModelError(name, f"bundle {name} has no cloud model: nothing to send up to")
        return cls(bundle, TierStages(bundle, "gateway"))

    def run(self, X: NDArray[np.float32]) -> TierAnswer:
        """Run the stages on checked `X`; ``offload`` marks the instances that none stops."""
        return self._stages.answer(X)
