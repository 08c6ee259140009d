"""Parts of a report that follow from the bundle and its rows: stages, examples, blocks' steps."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise import formats
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.results import RowTable
from gatewise_sim.report.document import ExampleInstance, StageResult

FloatArray = NDArray[np.float64]

_EXAMPLES_OF_EACH: Final = 3
#: Largest number of values of an instance in a report.
_MAX_FEATURES: Final = 1024


def stage_results(
    manifest: Manifest, table: RowTable, n_instances: int, weights: FloatArray
) -> tuple[StageResult, ...]:
    """List the stages of the bundle in order, the cloud last.

    Each has the share of instances that it answers at the operating point. `weights`, shape
    (n_rows,), is the number of times that each row occurs.
    """
    costs = manifest.feature_costs()
    steps = [(f"stage {s}", manifest.stage_inputs(s)) for s in range(table.n_stages)]
    if manifest.cloud is not None:
        steps.append(("cloud", manifest.cloud_inputs()))
    acquired = np.zeros(costs.n_features, np.bool_)
    results = []
    for stage, (name, inputs) in enumerate(steps):
        needed = costs.mask(inputs)
        answered = table.offload if name == "cloud" else ~table.offload & (table.exit == stage)
        share = float(weights[answered].sum() / weights.sum())
        columns = _columns(manifest, np.flatnonzero(needed))
        # A column may give some of its features to an earlier stage.
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


def _columns(manifest: Manifest, features: NDArray[np.intp]) -> dict[str, int]:
    """Map the names of some features' columns to their indices.

    With an encoder these are the raw columns: a column of categories becomes several features,
    which a device acquires together.
    """
    encoder = manifest.encoder
    if encoder is None:
        return {manifest.feature_names[k]: k for k in features.tolist()}
    columns = [encoder.column_of[k] for k in features.tolist()]
    return {encoder.names[column]: column for column in columns}


# -- examples -----------------------------------------------------------------------------------


def choose_examples(manifest: Manifest, table: RowTable, rows: Rows) -> tuple[ExampleInstance, ...]:
    """Choose instances with different answers: the device's cheapest, then offloaded ones.

    Offloaded ones are those of which the device is least confident; ties go to the first row.
    """
    if rows.X.shape[1] > _MAX_FEATURES:
        return ()
    local = np.flatnonzero(~table.offload & (table.exit >= 0))
    offloaded = np.flatnonzero(table.offload)
    easy = local[np.argsort(table.local_cost[local], kind="stable")]
    hard = offloaded[np.argsort(table.confidence[offloaded], kind="stable")]
    label = np.where(table.offload, table.cloud_label, table.local_label)
    return tuple(
        _example(manifest, table, rows, row)
        for candidates in (easy, hard)
        for row in _of_different_answers(candidates, label)
    )


def _of_different_answers(candidates: NDArray[np.intp], label: NDArray[np.int64]) -> list[int]:
    rows: dict[int, int] = {}
    for row in candidates.tolist():
        rows.setdefault(int(label[row]), row)
        if len(rows) == _EXAMPLES_OF_EACH:
            break
    return list(rows.values())


def _example(manifest: Manifest, table: RowTable, rows: Rows, row: int) -> ExampleInstance:
    offloaded = bool(table.offload[row])
    label = int(table.cloud_label[row] if offloaded else table.local_label[row])
    cost = table.request_cost[row] + table.offload_price if offloaded else table.local_cost[row]
    set_index = table.request_set[row] if offloaded else table.local_set[row]
    acquired = np.flatnonzero(table.sets[set_index])
    truth = int(table.truth[row])
    has_class = 0 <= truth < len(manifest.classes)
    values = rows.X[row].astype(float).tolist()
    return ExampleInstance(
        row=row,
        answered_by="cloud" if offloaded else f"stage {table.exit[row]}",
        label=table.classes[label],
        truth=table.classes[truth] if has_class else None,
        cost=float(cost),
        acquired=tuple(acquired.tolist()),
        readings=_readings(manifest, rows, row, acquired),
        values=tuple(v if np.isfinite(v) else None for v in values),
    )


def _readings(
    manifest: Manifest, rows: Rows, row: int, acquired: NDArray[np.intp]
) -> dict[str, str]:
    """Values of the columns that were acquired, in words: cells as they stand in the table."""
    columns = _columns(manifest, acquired)
    if manifest.encoder is None:
        return {name: _cell_text(rows.X[row, k].item()) for name, k in columns.items()}
    if rows.raw is None:
        return {manifest.feature_names[k]: _cell_text(rows.X[row, k].item()) for k in acquired}
    cells = manifest.encoder.cells(rows.raw[row])
    return {name: _cell_text(cells[k]) for name, k in columns.items()}


def _cell_text(cell: Any) -> str:
    if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
        return "missing"
    return formats.number(cell) if isinstance(cell, float) else str(cell)
