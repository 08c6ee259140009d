"""The stages of a bundle, as a report lists them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import FloatArray, RowTable
from gatewise_sim.report.document import StageResult


def stage_results(
    manifest: Manifest, table: RowTable, n_instances: int, row_weights: FloatArray
) -> tuple[StageResult, ...]:
    """List the stages of the bundle in order, with the cloud as the last one.

    The result of a stage includes the share of instances that it answers at the operating point.
    `row_weights`, shape (n_rows,), is the number of times that each row occurs.
    """
    costs = manifest.feature_costs()
    inputs_by_name = [
        (f"stage {stage}", manifest.stage_inputs(stage)) for stage in range(table.n_stages)
    ]
    if manifest.cloud is not None:
        inputs_by_name.append(("cloud", manifest.cloud_inputs()))
    is_acquired = np.zeros(costs.n_features, np.bool_)
    results = []
    for stage, (name, inputs) in enumerate(inputs_by_name):
        is_needed = costs.mask(inputs)
        is_answered = (
            table.is_offloaded
            if name == "cloud"
            else ~table.is_offloaded & (table.last_stage == stage)
        )
        share = float(row_weights[is_answered].sum() / row_weights.sum())
        columns = _column_names(manifest, np.flatnonzero(is_needed))
        # An earlier stage may have acquired some features of a column.
        earlier_columns = _column_names(manifest, np.flatnonzero(is_acquired))
        results.append(
            StageResult(
                name=name,
                columns=len(columns),
                acquires=tuple(column for column in columns if column not in earlier_columns),
                price=float(costs.price(np.flatnonzero(is_needed & ~is_acquired), is_acquired)),
                answers=round(share * n_instances),
                share=share,
            )
        )
        is_acquired |= is_needed
    return tuple(results)


def _column_names(manifest: Manifest, features: NDArray[np.intp]) -> list[str]:
    """List the columns of some features, without duplicates.

    With an encoder they are the raw columns, because the features of a column of categories are
    acquired together.
    """
    encoder = manifest.encoder
    if encoder is None:
        return [manifest.feature_names[feature] for feature in features.tolist()]
    column_names = (encoder.names[encoder.column_of[feature]] for feature in features.tolist())
    return list(dict.fromkeys(column_names))
