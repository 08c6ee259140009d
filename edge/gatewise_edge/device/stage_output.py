"""Output of a stage: margins, stop score, labels and probabilities.

They are made by :mod:`gatewise.decision`, with the very functions that training chose the
thresholds with. A device decides one row at a time, in plain floats: numpy's calls for one row
would take several times as long as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import (
    STOP_RULES,
    answers,
    probabilities,
    row_answer,
    row_probabilities,
    split,
    stops,
)
from gatewise_export.bundle.manifest import StageSpec

Matrix = NDArray[np.float32]


class StageOutput:
    """Output of one stage for n instances, as its graph or trees gave it, float32 (n, n_outputs).

    `margins` are float32 of shape (n, 1) or (n, n_classes); `score` is the stop score, shape (n,).
    """

    __slots__ = ("_spec", "margins", "outputs", "score")

    def __init__(self, outputs: Matrix, spec: StageSpec) -> None:
        self._spec = spec
        self.outputs = outputs
        self.margins, self.score = split(outputs, spec.score)

    def stops(self, threshold: float | None) -> NDArray[np.bool_]:
        """Which instances stop here, shape (n,)."""
        return stops(self.score, threshold)

    @property
    def labels(self) -> NDArray[Any]:
        """Class indices, int64, or where the model gives values these, float32; shape (n,)."""
        return answers(self.margins, self._spec.link)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Class probabilities, shape (n, n_classes); (n, 0) for values."""
        return probabilities(self.margins, self._spec.link)


class RowOutput:
    """Output of one stage for one instance, decided as a :class:`StageOutput` of one row.

    `outputs` are the float32 values of its graph or trees, `score` is the stop score.
    """

    __slots__ = ("_margins", "_spec", "outputs", "score")

    def __init__(self, outputs: Sequence[float], spec: StageSpec) -> None:
        self._spec = spec
        self.outputs = outputs
        rule = STOP_RULES[spec.score]
        self._margins = rule.row_margins(outputs)
        self.score = rule.row_score(outputs)

    def stops(self, threshold: float | None) -> bool:
        """Whether the instance stops here, given a float32 threshold; None never stops."""
        return threshold is not None and self.score >= threshold

    @property
    def label(self) -> int | float:
        """Class index, or where the model gives values this."""
        return row_answer(self._margins, self._spec.link)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Class probabilities, shape (n_classes,); (0,) for a value."""
        return row_probabilities(self._margins, self._spec.link)
