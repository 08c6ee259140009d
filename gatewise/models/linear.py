"""Linear models as flat float32 arrays, summed in a fixed order.

The order of additions in a matrix product depends on the machine and on the batch. This module adds
the terms feature by feature in float32, so that numpy, the ``CumSum`` of the ONNX graph, and C
compute the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.models.flat_arrays import ArraySpecs, row_blocks, running_sum

#: `mean` and `scale` of ``z = (x - mean) * scale``, each of shape (n_features,).
Scaling = tuple[NDArray[np.float32], NDArray[np.float32]]


def standard_scaling(x: NDArray[np.float32]) -> Scaling:
    """Compute the scaling that gives rows (n, n_features) mean 0 and standard deviation 1."""
    return column_scaling(x, x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64))


def column_scaling(
    x: NDArray[np.float32], centre: NDArray[np.float64], width: NDArray[np.float64]
) -> Scaling:
    """Compute the scaling that maps `centre` to 0 and `width` to 1, shapes (n_features,).

    Constant columns become 0, as do columns whose scaled values float32 cannot represent.
    """
    largest_float32 = np.finfo(np.float32).max
    value_range = x.max(axis=0).astype(np.float64) - x.min(axis=0)
    scale = np.zeros_like(width)
    # scale = 1 / width if float32 can represent every scaled value, else 0
    np.divide(
        1.0,
        width,
        out=scale,
        where=(width * largest_float32 > 1.0) & (value_range <= largest_float32),
    )
    return np.where(value_range <= largest_float32, centre, 0.0).astype(np.float32), scale.astype(
        np.float32
    )


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Linear model ``sum_j z_j * weights_j + bias`` of ``z = (x - mean) * scale``.

    The scaling is not folded into the weights, because that would lose precision on data with a
    large offset.
    """

    mean: NDArray[np.float32]  # (n_features,)
    scale: NDArray[np.float32]  # (n_features,)
    weights: NDArray[np.float32]  # (n_features, n_outputs)
    bias: NDArray[np.float32]  # (n_outputs,)

    ARRAYS: ClassVar[ArraySpecs] = {
        "mean": (np.float32, ("inputs",)),
        "scale": (np.float32, ("inputs",)),
        "weights": (np.float32, ("inputs", "outputs")),
        "bias": (np.float32, ("outputs",)),
    }

    @property
    def n_features(self) -> int:
        """Number of columns of the input."""
        return len(self.weights)

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return len(self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays."""
        arrays = (self.mean, self.scale, self.weights, self.bias)
        return sum(array.nbytes for array in arrays)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute margins, adding in the order of the features.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        margins = np.empty((len(x), self.n_outputs), np.float32)
        with np.errstate(all="ignore"):  # an infinite sum makes the stop score NaN
            for rows in row_blocks(len(x), self.weights.size):
                # margins = sum_j (x_j - mean_j) * scale_j * weights_j + bias
                scaled_x = (np.asarray(x[rows], np.float32) - self.mean) * self.scale
                margins[rows] = running_sum(scaled_x[:, :, np.newaxis] * self.weights) + self.bias
        return margins

    run = margins

    def used_features(self) -> NDArray[np.intp]:
        """List the features with a weight other than 0, in ascending order."""
        return np.flatnonzero((self.weights != 0).any(axis=1)).astype(np.intp)

    def compact(self) -> tuple[LinearModel, NDArray[np.intp]]:
        """Return a copy that reads only the features in use, and the indices of these features."""
        used_features = self.used_features()
        compact_model = LinearModel(
            self.mean[used_features],
            self.scale[used_features],
            self.weights[used_features],
            self.bias,
        )
        return compact_model, used_features

    def without_last_output(self) -> LinearModel:
        """Return a copy without the last output."""
        return LinearModel(
            self.mean, self.scale, np.ascontiguousarray(self.weights[:, :-1]), self.bias[:-1]
        )
