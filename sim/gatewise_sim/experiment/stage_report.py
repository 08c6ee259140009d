"""List the stages of a bundle for a report: their inputs, prices and shares of the answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import FloatArray, RowTable
from gatewise_sim.report.document import StageResult


def list_stage_results(
    manifest: Manifest, table: RowTable, n_instances: int, row_weights: FloatArray
) -> tuple[StageResult, ...]:
    """List the stages of the bundle in order, with the cloud as the last one.

    The price of a stage is the price of the features that no earlier stage acquires. Its share of
    the instances is the share at the operating point. `row_weights`, shape (n_rows,), is the number
    of times that each row occurs; at least one is positive.
    """
    costs = manifest.feature_costs()
    # name, inputs and answered rows of each stage
    stages = [
        (
            f"stage {stage}",
            manifest.stage_inputs(stage),
            ~table.is_offloaded & (table.last_stage == stage),
        )
        for stage in range(table.n_stages)
    ]
    if manifest.cloud is not None:
        stages.append(("cloud", manifest.cloud_inputs(), table.is_offloaded))
    is_acquired = np.zeros(costs.n_features, np.bool_)
    stage_results = []
    for name, inputs, is_answered in stages:
        is_needed = costs.mask(inputs)
        share = float(row_weights[is_answered].sum() / row_weights.sum())
        columns = _list_columns(manifest, np.flatnonzero(is_needed))
        # an earlier stage may have acquired some features of a column
        earlier_columns = _list_columns(manifest, np.flatnonzero(is_acquired))
        stage_results.append(
            StageResult(
                name=name,
                columns=len(columns),
                acquires=tuple(column for column in columns if column not in earlier_columns),
                price=costs.price(is_needed, is_acquired),
                answers=round(share * n_instances),
                share=share,
            )
        )
        is_acquired |= is_needed
    return tuple(stage_results)


def _list_columns(manifest: Manifest, features: NDArray[np.intp]) -> list[str]:
    """List the columns of some features, without duplicates.

    With an encoder they are the raw columns, because the features of a column of categories are
    acquired together.
    """
    encoder = manifest.encoder
    if encoder is None:
        return [manifest.feature_names[feature] for feature in features.tolist()]
    column_names = (encoder.names[encoder.column_of[feature]] for feature in features.tolist())
    return list(dict.fromkeys(column_names))
