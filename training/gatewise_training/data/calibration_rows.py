"""Rows set aside to certify a guarantee: no choice of a fit sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise.errors import InputError
from gatewise_training.data.input_checks import Table

CALIBRATION_SHARE = 5
"""One training row in this many becomes a calibration row."""


def hold_back(table: Table, confidence: float, seed: int) -> tuple[Table, Table]:
    """Set calibration rows aside: half of the user's validation rows, else a training fifth."""
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight: its tests count rows")
    n = len(table.x)
    chances = table.high_cost
    if table.validation is None:
        x = table.x
        y = table.y
        rows = table.splitter.take(np.arange(n))
        kept, aside = rows.hold_out(y, CALIBRATION_SHARE, seed)
        rest = replace(
            table, x=x[kept], y=y[kept], weight=table.weight[kept], splitter=rows.take(kept),
            high_cost=None if chances is None else chances[kept],
        )  # fmt: skip
        known = None if chances is None else chances[aside]
    else:
        (x, y) = table.validation
        known = None
        rows = table.splitter.take(n + np.arange(len(x)))
        kept, aside = rows.hold_out(y, 2, seed)
        every = table.splitter.take(np.concatenate([np.arange(n), n + kept]))
        rest = replace(table, validation=(x[kept], y[kept]), splitter=every)
    if len(np.unique(rest.y)) < len(table.classes) or not len(aside):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    return rest, replace(
        table, x=x[aside], y=y[aside], weight=np.ones(len(aside)), validation=None, high_cost=known,
        splitter=rows.take(aside),
    )  # fmt: skip
