"""A flat classifier whose stop score trees correct: margins and score from one model.

The trees read the classifier's inputs, its margins and its own stop score (|m|, or the gap between
the two largest margins), and what they say is added to that score. Everything is float32 and free
of ``exp``, so that numpy, the ONNX graph and C give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import stop_score
from gatewise.errors import InputError
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble

__all__ = ["PlainModel", "ScoredModel", "score_inputs"]

PlainModel = TreeEnsemble | LinearModel | KernelModel
"""A classifier by itself."""


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """A classifier and the trees that correct its stop score.

    Attributes
    ----------
    model : TreeEnsemble, LinearModel or KernelModel
        Gives the class margins.
    stop : TreeEnsemble
        One output; reads what :func:`score_inputs` makes.

    Raises
    ------
    InputError
        If the two do not fit together.
    """

    model: PlainModel
    stop: TreeEnsemble

    def __post_init__(self) -> None:
        wanted = self.model.n_features + self.model.n_outputs + 1
        if self.stop.n_features != wanted or self.stop.n_outputs != 1:
            raise InputError(
                f"stop trees must read {wanted} columns and give 1 output, not "
                f"{self.stop.n_features} and {self.stop.n_outputs}"
            )

    @property
    def n_features(self) -> int:
        """Columns of the input: the classifier's, the trees ask for no others."""
        return self.model.n_features

    @property
    def n_outputs(self) -> int:
        """Class margins, and the stop score behind them."""
        return self.model.n_outputs + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays, those of the stop trees included."""
        return self.model.nbytes + self.stop.nbytes

    @property
    def n_trees(self) -> int:
        """Trees that one decision evaluates, those of the stop score included."""
        own = self.model.n_trees if isinstance(self.model, TreeEnsemble) else 0
        return own + self.stop.n_trees

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Class margins and, as the last column, the stop score.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)

        Returns
        -------
        ndarray of float32, shape (n, n_outputs)
        """
        return self.scored(x, self.model.margins(x))

    def scored(self, x: NDArray[np.float32], margins: NDArray[np.float32]) -> NDArray[np.float32]:
        """Append the stop score to margins that are known already.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)
        margins : ndarray of float32, shape (n, n_outputs - 1)
        """
        inputs = score_inputs(x, margins)
        score = inputs[:, -1:] + self.stop.margins(inputs)
        return np.concatenate([margins, score], axis=1)


def score_inputs(x: NDArray[np.float32], margins: NDArray[np.float32]) -> NDArray[np.float32]:
    """What stop trees read: the classifier's inputs, its margins, its stop score.

    Parameters
    ----------
    x : ndarray of float32, shape (n, n_features)
    margins : ndarray of float32, shape (n, n_margins)

    Returns
    -------
    ndarray of float32, shape (n, n_features + n_margins + 1)
    """
    return np.concatenate([x, margins, stop_score(margins)[:, None]], axis=1)
