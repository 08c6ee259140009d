"""Conversion of samples to the rate and the values that a bundle was trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import not_installed

#: Largest denominator of the ratio of two rates. A finer ratio would take more time, because the
#: filter of resample_poly has 20 times as many taps as the larger of numerator and denominator.
_MAX_DENOMINATOR: Final = 1000
#: Number of samples that resampling needs on each side of a window, at the lower of the two rates.
#: It is half the length of the filter of resample_poly.
_MARGIN_SAMPLES: Final = 10


class WindowResampler:
    """A resampler from windows at `from_hz` to windows of `output_length` samples at `to_hz`.

    An input window has `margin` further samples on each side, which make resampling exact up to the
    ends of the window. The attribute `input_length` includes the margins.
    """

    def __init__(self, from_hz: float, to_hz: float, output_length: int) -> None:
        try:
            from scipy.signal import resample_poly
        except ModuleNotFoundError as error:
            raise not_installed(error, "train") from None
        self._resample: Callable[..., NDArray[Any]] = resample_poly
        ratio = Fraction(to_hz / from_hz).limit_denominator(_MAX_DENOMINATOR)
        self._up = ratio.numerator
        self._down = ratio.denominator
        self._output_length = output_length
        # The margin is a whole number of periods of the two rates.
        n_periods = math.ceil(_MARGIN_SAMPLES * max(1 / self._up, 1 / self._down))
        self.margin = n_periods * self._down
        self.input_length = self.n_input_samples(output_length) + 2 * self.margin

    def n_input_samples(self, n_samples: int) -> int:
        """Number of samples at `from_hz` in the time of `n_samples` at `to_hz`."""
        return math.ceil(n_samples * self._down / self._up)

    def resample(self, window: NDArray[Any]) -> NDArray[np.float64]:
        """Resample a window with its margins, shape (length,) or (length, channels)."""
        samples = self._resample(window.astype(np.float64), self._up, self._down)
        first_sample = self.margin * self._up // self._down
        resampled_window: NDArray[np.float64] = samples[
            first_sample : first_sample + self._output_length
        ]
        return resampled_window


@dataclass(frozen=True, eq=False)
class SampleConversion:
    """The conversion from samples to the bundle's values: ``(sample + offset) * factor``.

    The values have the type of windows. Integers are rounded and clipped to the range of their
    type. Samples with a NaN or infinite value become float32, because no integer stands for such a
    value. The device then refuses their window.
    """

    dtype: np.dtype[Any]
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    offset: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def cast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values to the type of windows."""
        if self.dtype.kind == "f":
            return values.astype(np.float32)
        type_range = np.iinfo(self.dtype)
        integers: NDArray[Any] = np.clip(np.rint(values), type_range.min, type_range.max)
        is_finite = np.isfinite(values)
        if not is_finite.all():
            return np.where(is_finite, integers, values).astype(np.float32)
        return integers.astype(self.dtype)

    def convert(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Convert samples, shape (k,) or (k, channels), to the bundle's values."""
        if (self.factor == 1).all() and not self.offset.any():
            return samples
        return self.cast((samples.astype(np.float64) + self.offset) * self.factor)
