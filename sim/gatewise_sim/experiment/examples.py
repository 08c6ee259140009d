"""A few instances to look at: easy ones, then hard ones."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.report.model import ExampleInstance

_OF_EACH: Final = 3
#: Values that a report holds of an instance, at most.
_MOST_FEATURES: Final = 1024


def choose_examples(
    manifest: Manifest, routes: Routes, rows: NDArray[np.float32]
) -> tuple[ExampleInstance, ...]:
    """The cheapest of the device's own answers, then offloaded instances, each of another answer.

    Of equally cheap ones the first counts; of offloaded ones those with the lowest stop scores.

    Shapes: `rows` (n, n_features).
    """
    if rows.shape[1] > _MOST_FEATURES:
        return ()
    own = np.flatnonzero(~routes.offload & (routes.exit >= 0))
    sent = np.flatnonzero(routes.offload)
    easy = own[np.argsort(routes.local_cost[own], kind="stable")]
    hard = sent[np.argsort(routes.score[sent], kind="stable")]
    return tuple(
        _example(manifest, routes, rows, int(row))
        for kind in (easy, hard)
        for row in _of_different_answers(kind, routes.label)
    )


def _of_different_answers(candidates: NDArray[np.intp], labels: NDArray[np.int64]) -> list[int]:
    chosen: dict[int, int] = {}
    for row in candidates.tolist():
        chosen.setdefault(int(labels[row]), row)
        if len(chosen) == _OF_EACH:
            break
    return list(chosen.values())


def _example(
    manifest: Manifest, routes: Routes, rows: NDArray[np.float32], row: int
) -> ExampleInstance:
    offloaded = bool(routes.offload[row])
    which = routes.request_set[row] if offloaded else routes.local_set[row]
    values = rows[row].astype(np.float64)
    truth = int(routes.truth[row])
    known = 0 <= truth < len(manifest.classes)
    return ExampleInstance(
        row=row,
        answered_by="cloud" if offloaded else f"stage {routes.exit[row]}",
        label=str(manifest.classes[int(routes.label[row])]),
        truth=str(manifest.classes[truth]) if known else None,
        cost=float(routes.cost[row]),
        acquired=tuple(np.flatnonzero(routes.sets[which]).tolist()),
        values=tuple(v if np.isfinite(v) else None for v in values.tolist()),
    )
