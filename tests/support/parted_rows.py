"""Rows whose informative column depends on the row, so that rows acquire different columns."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_parted_rows(n: int, n_classes: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """Draw rows and classes.

    Column 0 selects which of the columns 1 to 5 determines the class of a row.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    informative_column = 1 + np.digitize(x[:, 0], [-0.8, -0.2, 0.4, 1.0])
    score = x[np.arange(n), informative_column] + 0.3 * x[:, 0]
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    return x, y.astype(np.int64)
