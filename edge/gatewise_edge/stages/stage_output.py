"""Output of a stage: margins, stop score, labels and probabilities.

They are made by :mod:`gatewise.decision`, with the very functions that training chose the
thresholds with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import answers, probabilities, split, stops
from gatewise_export.bundle.manifest import StageSpec

__all__ = ["StageOutput"]

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
