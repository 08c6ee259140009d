"""Kernel machines as flat float32 arrays, which compute the same bits on every machine.

The kernel is the rational quadratic ``(1 + gamma d / 64) ** -64`` of the squared distance ``d``. It
approximates the Gaussian ``exp(-gamma d)`` and is also positive definite. It needs one division and
six squarings, which all machines round in the same way, whereas results of ``exp`` differ between
libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.models.flat_arrays import ArraySpecs, row_blocks, running_sum

#: Number of squarings of the kernel; the exponent is 2**6. Fitted weights, the rates of packed
#: models, and the kernels in compiled code, ONNX and C depend on it.
SQUARINGS = 6


@dataclass(frozen=True, eq=False)
class KernelModel:
    """Kernel machine ``sum_l (1 + rate ||z - landmark_l||^2) ** -64 * weights_l + bias``.

    The scaled rows are ``z = (x - mean) * scale``.
    """

    mean: NDArray[np.float32]  # (n_features,)
    scale: NDArray[np.float32]  # (n_features,)
    landmarks: NDArray[np.float32]  # (n_landmarks, n_features), scaled
    rate: np.float32  # gamma / 2**SQUARINGS
    weights: NDArray[np.float32]  # (n_landmarks, n_outputs)
    bias: NDArray[np.float32]  # (n_outputs,)

    ARRAYS: ClassVar[ArraySpecs] = {
        "mean": (np.float32, ("inputs",)),
        "scale": (np.float32, ("inputs",)),
        "landmarks": (np.float32, ("landmarks", "inputs")),
        "rate": (np.float32, ()),
        "weights": (np.float32, ("landmarks", "outputs")),
        "bias": (np.float32, ("outputs",)),
    }

    @property
    def n_features(self) -> int:
        """Number of columns of the input."""
        return int(self.landmarks.shape[1])

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return len(self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays, to which the number `rate` does not belong."""
        arrays = (self.mean, self.scale, self.landmarks, self.weights, self.bias)
        return sum(array.nbytes for array in arrays)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute margins, adding feature by feature and then landmark by landmark.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        try:
            from gatewise.models.compiled import add_kernels
        except ModuleNotFoundError:  # devices have no numba
            return self.run(x)
        with np.errstate(all="ignore"):
            scaled_x = np.ascontiguousarray((np.asarray(x, np.float32) - self.mean) * self.scale)
        margins = np.zeros((len(scaled_x), self.n_outputs), np.float32)
        add_kernels(
            scaled_x,
            self.landmarks,
            self.rate,
            self.weights,
            self.bias,
            squarings=SQUARINGS,
            margins=margins,
        )
        return margins

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the same bits as :meth:`margins` without compiled code."""
        margins = np.empty((len(x), self.n_outputs), np.float32)
        one = np.float32(1)
        row_size = len(self.landmarks) * max(self.n_features, self.n_outputs)
        # sums may overflow; margins that are not finite make the stop score NaN, which never stops
        with np.errstate(all="ignore"):
            for rows in row_blocks(len(x), row_size):
                # power = (1 + rate * ||z - landmark||^2) ** -64, by six squarings; running_sum adds
                # features and landmarks in the order of compiled code, which gives the same bits
                scaled_x = (x[rows] - self.mean) * self.scale
                differences = scaled_x[:, :, np.newaxis] - self.landmarks.T
                power = one / (running_sum(differences * differences) * self.rate + one)
                for _ in range(SQUARINGS):
                    power = power * power
                margins[rows] = running_sum(power[:, :, np.newaxis] * self.weights) + self.bias
        return margins

    def used_features(self) -> NDArray[np.intp]:
        """List the features with a scale other than 0, in ascending order."""
        return np.flatnonzero(self.scale != 0).astype(np.intp)

    def compact(self) -> tuple[KernelModel, NDArray[np.intp]]:
        """Return a copy that reads only the features in use, and the indices of these features."""
        used_features = self.used_features()
        compact_model = KernelModel(
            self.mean[used_features],
            self.scale[used_features],
            np.ascontiguousarray(self.landmarks[:, used_features]),
            self.rate,
            self.weights,
            self.bias,
        )
        return compact_model, used_features
