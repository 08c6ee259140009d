"""Calibration rows, which certify a guarantee and are not used for any choice of a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise.errors import InputError
from gatewise_training.data.input_checks import TrainingTable

N_TRAINING_PARTS = 5
"""Number of parts of the training rows; one part becomes the calibration rows."""


def split_calibration_rows(
    table: TrainingTable, confidence: float, seed: int
) -> tuple[TrainingTable, TrainingTable]:
    """Split calibration rows off the user's validation rows, or else off the training rows."""
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight, because its tests count rows")
    n = len(table.x)
    probabilities = table.high_cost_probabilities
    calibration_probabilities = None
    # set aside a fifth of the training rows, or half of the user's validation rows
    if table.validation is None:
        x = table.x
        y = table.y
        rows = table.splitter.take(np.arange(n))
        other_rows, calibration_rows = rows.hold_out(y, N_TRAINING_PARTS, seed)
        training = replace(
            table,
            x=x[other_rows],
            y=y[other_rows],
            weight=table.weight[other_rows],
            splitter=rows.take(other_rows),
            high_cost_probabilities=None if probabilities is None else probabilities[other_rows],
        )
        if probabilities is not None:
            calibration_probabilities = probabilities[calibration_rows]
    else:
        x, y = table.validation
        rows = table.splitter.take(n + np.arange(len(x)))
        other_rows, calibration_rows = rows.hold_out(y, 2, seed)
        all_rows = table.splitter.take(np.concatenate([np.arange(n), n + other_rows]))
        training = replace(table, validation=(x[other_rows], y[other_rows]), splitter=all_rows)
    if len(np.unique(training.y)) < len(table.classes) or not len(calibration_rows):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    calibration = replace(
        table,
        x=x[calibration_rows],
        y=y[calibration_rows],
        weight=np.ones(len(calibration_rows)),
        validation=None,
        high_cost_probabilities=calibration_probabilities,
        splitter=rows.take(calibration_rows),
    )
    return training, calibration
