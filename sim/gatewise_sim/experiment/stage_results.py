"""What each stage acquires, at which price, and which share of the instances it answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.report.model import StageResult

__all__ = ["stage_results"]


def stage_results(
    manifest: Manifest,
    routes: Routes,
    instances: float,
    weights: NDArray[np.float64] | None = None,
) -> tuple[StageResult, ...]:
    """Stages of the bundle in order, the cloud last; answers as the gates decide them.

    Parameters
    ----------
    manifest : Manifest
    routes : Routes
    instances : float
        Of the run.
    weights : ndarray of float64, shape (n_rows,), optional
        How often each row comes; all alike by default.
    """
    costs = manifest.feature_costs()
    weight = np.ones(len(routes)) if weights is None else weights
    steps = [(f"stage {s}", manifest.stage_inputs(s)) for s in range(len(manifest.stages))]
    if manifest.cloud is not None:
        steps.append(("cloud", manifest.cloud_inputs()))
    acquired = np.zeros(costs.n_features, bool)
    found = []
    for s, (name, inputs) in enumerate(steps):
        wanted = costs.mask(inputs)
        new = np.flatnonzero(wanted & ~acquired)
        here = routes.offload if name == "cloud" else ~routes.offload & (routes.exit == s)
        share = float(weight[here].sum() / weight.sum())
        found.append(
            StageResult(
                name=name,
                features=int(wanted.sum()),
                acquires=tuple(manifest.feature_names[k] for k in new),
                price=float(costs.price(new, acquired)),
                answers=round(share * instances),
                share=share,
            )
        )
        acquired |= wanted
    return tuple(found)
