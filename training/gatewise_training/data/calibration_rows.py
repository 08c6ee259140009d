"""Calibration rows, which certify a guarantee and are not used for any choice of a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise.errors import InputError
from gatewise_training.data.input_checks import TrainingTable

#: Number of parts of the training rows; one part becomes the calibration rows.
N_TRAINING_PARTS = 5


def split_calibration_rows(
    table: TrainingTable, confidence: float, seed: int
) -> tuple[TrainingTable, TrainingTable]:
    """Split calibration rows off the user's validation rows, or else off the training rows."""
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight, because its tests count rows")
    n = len(table.x)
    if table.validation is None:
        # a fifth of the training rows
        splitter = table.splitter.take(np.arange(n))
        other_rows, calibration_rows = splitter.hold_out(table.y, N_TRAINING_PARTS, seed)
        training_table = table.take(other_rows)
        calibration_table = table.take(calibration_rows)
    else:
        # half of the user's validation rows
        x, y = table.validation
        splitter = table.splitter.take(n + np.arange(len(x)))
        other_rows, calibration_rows = splitter.hold_out(y, 2, seed)
        all_rows = table.splitter.take(np.concatenate([np.arange(n), n + other_rows]))
        training_table = replace(
            table, validation=(x[other_rows], y[other_rows]), splitter=all_rows
        )
        calibration_table = replace(
            table,
            x=x[calibration_rows],
            y=y[calibration_rows],
            validation=None,
            high_cost_probabilities=None,
            splitter=splitter.take(calibration_rows),
        )
    if len(np.unique(training_table.y)) < len(table.classes) or not len(calibration_rows):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    return training_table, replace(calibration_table, weight=np.ones(len(calibration_rows)))
