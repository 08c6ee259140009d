"""Linear models as flat float32 arrays, summed in one fixed order.

A matrix product adds its terms in an order that depends on the machine and on the batch.
Here the terms are added one after another, feature by feature, in float32: the bits are the
same in numpy, in the ONNX graph (a ``CumSum``) and in C, so a decision never flips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.models.flat_arrays import ArraySpecs, row_blocks, running_sum

Scaling = tuple[NDArray[np.float32], NDArray[np.float32]]
"""`mean` and `scale` of ``z = (x - mean) * scale``, (n_features,) each."""


def standard_scores(x: NDArray[np.float32]) -> Scaling:
    """Get the scaling to mean 0 and deviation 1 of rows (n, n_features)."""
    return column_scaling(x, x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64))


def column_scaling(
    x: NDArray[np.float32], centre: NDArray[np.float64], width: NDArray[np.float64]
) -> Scaling:
    """Get the scaling of a `centre` to 0 and a `width` to 1, shapes (n_features,).

    Constant columns become 0, and those whose scores float32 cannot hold.
    """
    largest = np.finfo(np.float32).max
    range_ = x.max(axis=0).astype(np.float64) - x.min(axis=0)
    scale = np.zeros_like(width)
    # scale = 1 / width where float32 holds every score, else 0
    np.divide(1.0, width, out=scale, where=(width * largest > 1.0) & (range_ <= largest))
    return np.where(range_ <= largest, centre, 0.0).astype(np.float32), scale.astype(np.float32)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """``margins = sum_j z_j * weights_j + bias`` with ``z = (x - mean) * scale``, in float32.

    The standardisation, (n_features,), is never folded into the `weights`, (n_features, n_outputs):
    that would cost precision on data with a large offset. `bias` is (n_outputs,).
    """

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]

    ARRAYS: ClassVar[ArraySpecs] = {
        "mean": (np.float32, ("inputs",)),
        "scale": (np.float32, ("inputs",)),
        "weights": (np.float32, ("inputs", "outputs")),
        "bias": (np.float32, ("outputs",)),
    }

    @property
    def n_features(self) -> int:
        """Columns of the input."""
        return len(self.weights)

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return len(self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays."""
        arrays = (self.mean, self.scale, self.weights, self.bias)
        return sum(a.nbytes for a in arrays)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add up the terms in the order of the features, in float32.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        out = np.empty((len(x), self.n_outputs), np.float32)
        with np.errstate(all="ignore"):  # an infinite sum is seen by its score
            for rows in row_blocks(len(x), self.weights.size):
                # margins = sum_j (x_j - mean_j) * scale_j * weights_j + bias
                z = (np.asarray(x[rows], np.float32) - self.mean) * self.scale
                out[rows] = running_sum(z[:, :, np.newaxis] * self.weights) + self.bias
        return out

    run = margins

    def used(self) -> NDArray[np.intp]:
        """Features with a weight that is not zero, ascending."""
        return np.flatnonzero((self.weights != 0).any(axis=1)).astype(np.intp)

    def compact(self) -> tuple[LinearModel, NDArray[np.intp]]:
        """Keep the features in use; returns the smaller model and which they are."""
        used = self.used()
        smaller = LinearModel(self.mean[used], self.scale[used], self.weights[used], self.bias)
        return smaller, used

    def without_last_output(self) -> LinearModel:
        """Drop the last output; the bits of the others stay."""
        return LinearModel(
            self.mean, self.scale, np.ascontiguousarray(self.weights[:, :-1]), self.bias[:-1]
        )
