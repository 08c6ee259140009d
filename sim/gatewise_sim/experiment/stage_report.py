"""The stages of a bundle, as a report lists them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import RowTable
from gatewise_sim.report.document import StageResult

FloatArray = NDArray[np.float64]


def stage_results(
    manifest: Manifest, table: RowTable, n_instances: int, weights: FloatArray
) -> tuple[StageResult, ...]:
    """List the stages of the bundle in order, with the cloud as the last one.

    The result of a stage includes the share of instances that it answers at the operating point.
    `weights`, shape (n_rows,), is the number of times that each row occurs.
    """
    costs = manifest.feature_costs()
    parts = [(f"stage {s}", manifest.stage_inputs(s)) for s in range(table.n_stages)]
    if manifest.cloud is not None:
        parts.append(("cloud", manifest.cloud_inputs()))
    acquired = np.zeros(costs.n_features, np.bool_)
    results = []
    for stage, (name, inputs) in enumerate(parts):
        needed = costs.mask(inputs)
        answered = table.offload if name == "cloud" else ~table.offload & (table.exit == stage)
        share = float(weights[answered].sum() / weights.sum())
        columns = _columns(manifest, np.flatnonzero(needed))
        # An earlier stage may have acquired some features of a column.
        earlier = _columns(manifest, np.flatnonzero(acquired))
        results.append(
            StageResult(
                name=name,
                columns=len(columns),
                acquires=tuple(column for column in columns if column not in earlier),
                price=float(costs.price(np.flatnonzero(needed & ~acquired), acquired)),
                answers=round(share * n_instances),
                share=share,
            )
        )
        acquired |= needed
    return tuple(results)


def _columns(manifest: Manifest, features: NDArray[np.intp]) -> list[str]:
    """List the columns of some features, without duplicates.

    With an encoder they are the raw columns, because the features of a column of categories are
    acquired together.
    """
    encoder = manifest.encoder
    if encoder is None:
        return [manifest.feature_names[k] for k in features.tolist()]
    return list(dict.fromkeys(encoder.names[encoder.column_of[k]] for k in features.tolist()))
