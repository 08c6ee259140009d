"""Calibration rows: set aside before anything is fitted, so that a system can give guarantees.

Half of the user's validation rows, or without any a fifth of the training rows: no model, no
threshold and no choice has seen them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data.input_checks import Table
from gatewise_training.data.validation_split import Rows, strata
from gatewise_training.operating_points.candidate_points import candidates
from gatewise_training.operating_points.frontier import Frontier, OperatingPoint
from gatewise_training.operating_points.guarantee import certify
from gatewise_training.operating_points.thresholds import ChainRecord

__all__ = ["Calibration", "hold_back"]

SHARE = 5
"""One training row in so many is held back."""


def hold_back(table: Table, confidence: float, seed: int) -> tuple[Table, Table]:
    """Part the rows that certify from the rest.

    Parameters
    ----------
    table : Table
    confidence : float
        Checked here, before the long work.
    seed : int

    Returns
    -------
    rest, certifying : Table

    Raises
    ------
    InputError
        For a confidence that is not between 0 and 1, weighted rows, or too few rows.
    """
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight: its tests count rows")
    if table.validation is not None:
        x, y = table.validation
        kept, held = _halves(y, 2, seed)
        rest = replace(table, validation=(x[kept], y[kept]))
    else:
        x, y = table.x, table.y
        kept, held = _halves(y, SHARE, seed)
        rest = replace(table, x=x[kept], y=y[kept], weight=table.weight[kept])
    if len(np.unique(rest.y)) < len(table.classes) or not len(held):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    certifying = replace(table, x=x[held], y=y[held], weight=np.ones(len(held)), validation=None)
    return rest, certifying


def _halves(y: NDArray[np.int64], k: int, seed: int) -> tuple[Rows, Rows]:
    part = strata(y, k, seed)
    return np.flatnonzero(part != 0), np.flatnonzero(part == 0)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What certifying an operating point needs.

    Attributes
    ----------
    tuning, certifying : tuple of ChainRecord, one a chain
        Of the rows that tune, and of those that certify.
    confidence : float
    """

    tuning: tuple[ChainRecord, ...]
    certifying: tuple[ChainRecord, ...]
    confidence: float

    def certify(
        self,
        frontier: Frontier,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        offload_rate: float | None = None,
    ) -> OperatingPoint:
        """Find the boldest point that keeps the bound with the confidence.

        Parameters
        ----------
        frontier : Frontier
            Tuned on the tuning rows.
        budget, max_loss, offload_rate : float, optional
            Exactly one.

        Raises
        ------
        InputError
            If not even the safest setting can be certified.
        """
        rows = len(self.certifying[0].weights)
        bound = {"budget": budget, "max_loss": max_loss, "offload_rate": offload_rate}
        order = candidates(
            self.tuning, frontier.points, rows=rows, confidence=self.confidence, **bound
        )
        point = certify(
            self.certifying,
            order,
            budget=budget,
            max_loss=max_loss,
            offload_rate=offload_rate,
            confidence=self.confidence,
        )
        if point is None:
            kind, value = next((k, v) for k, v in bound.items() if v is not None)
            raise InputError(
                f"{kind}={value:g} cannot be guaranteed at {self.confidence:g} with {rows} "
                "calibration rows; give more rows or a looser bound"
            )
        return point
