"""Steps of the computation of features from a window; blocks are the last steps.

A step reads the window or the results of other steps::

    Channels -> Spectrum -> BandPowers       (a block)
                         -> SpectralMoments  (a second block, which shares the spectrum)

Steps with equal settings are equal, and their result is computed and paid once. The price of a step
covers its own computation; :meth:`.SignalGraph.costs` makes feature costs of the prices of all.

Steps compute in float32 with numpy. A window has the same bits alone and among others, because
sums run along the last axis of contiguous arrays, where numpy's order does not depend on the rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.prices import check_price
from gatewise_signals.price_table import PriceTable

Values: TypeAlias = NDArray[np.float32]

LUMINANCE = tuple(np.float32(weight) for weight in (0.299, 0.587, 0.114))
"""Weights of red, green and blue (ITU-R BT.601)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Step(ABC):
    """One computation; the fields of a subclass are its settings, which may be other steps.

    Attributes
    ----------
    price : float or None
        Price of the computation for one window, without the steps that it reads: microseconds
        after :func:`.measured`, or any other unit. None: not priced yet.
    measured : PriceTable or None
        Source of the price, if it was measured.
    """

    kind: ClassVar[str]
    """Name of the class in manifests and feature names."""
    price: float | None = field(default=None, compare=False)
    measured: PriceTable | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, hint in settings_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(hint, type) and issubclass(hint, Step) and not isinstance(value, hint):
                raise InputError(f"{self.kind}: {name} must be a {hint.__name__}, not {value!r}")
        if self.price is not None:
            check_price(f"the price of {self.label}", self.price)
        self._check()

    def _check(self) -> None:  # noqa: B027
        """Raise InputError for settings with which no window can be computed."""

    @property
    def inputs(self) -> tuple[Step, ...]:
        """Steps that this one reads; empty if it reads the window."""
        steps: list[Step] = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            values = value if isinstance(value, tuple) else (value,)
            steps += [v for v in values if isinstance(v, Step)]
        return tuple(steps)

    @property
    def label(self) -> str:
        """Name of the step with its settings: ``spectrum(acc, 50)``."""
        settings = [f for f in fields(self) if f.name not in ("price", "measured")]
        # a setting at its default is left out
        settings = [f for f in settings if f.default is None or getattr(self, f.name) != f.default]
        return f"{self.kind}({', '.join(_text(getattr(self, f.name)) for f in settings)})"

    def __repr__(self) -> str:
        return self.label

    @abstractmethod
    def run(self, *inputs: NDArray[Any]) -> Values:
        """Compute the step for n windows.

        Parameters
        ----------
        *inputs : ndarray, shape (n, ...)
            Results of :attr:`inputs`, in order, or else the windows.

        Returns
        -------
        ndarray of float32, shape (n, ...), C-contiguous
        """

    def with_prices(self, prices: Mapping[Step, float], table: PriceTable | None = None) -> Self:
        """Return a copy with `prices` from a `table` for itself and the steps that it needs."""

        def priced(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(priced(v) for v in value)
            return value.with_prices(prices, table) if isinstance(value, Step) else value

        changes = {f.name: priced(getattr(self, f.name)) for f in fields(self)}
        if self in prices:
            changes |= {"price": prices[self], "measured": table}
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True, repr=False)
class Signal(Step):
    """A step with a result for each channel, shape (n, n_channels, samples) or (..., bins)."""

    @property
    @abstractmethod
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""


@dataclass(frozen=True, repr=False)
class ChannelwiseSignal(Signal):
    """A signal computed from another signal, channel by channel."""

    source: Signal

    @property
    def channels(self) -> tuple[str, ...]:
        return self.source.channels


@dataclass(frozen=True, repr=False)
class Channels(Signal):
    """Channels of a window as a signal, in their unit.

    Parameters
    ----------
    name : str
        Name of the signal in the names of features, such as ``acc``.
    indices : tuple of int, default (0,)
        Channels of windows (n, samples, channels); windows (n, samples) have channel 0 alone.
    axes : tuple of str
        Names of the channels, such as ``("x", "y", "z")``; by default their indices.
    scale : float, default 1.0
        Unit of one count, for signals in whole numbers.
    unit : str
        Name of the unit, such as ``m/s2``; a device compares it with the unit of its sensor.
    rate_hz : float, default 0.0
        Samples per second; 0: not known, or the rate of the blocks.
    """

    kind: ClassVar[str] = "channels"
    name: str = "x"
    indices: tuple[int, ...] = (0,)
    axes: tuple[str, ...] = ()
    scale: float = 1.0
    unit: str = ""
    rate_hz: float = 0.0

    @property
    def label(self) -> str:
        return self.name

    @property
    def channels(self) -> tuple[str, ...]:
        return self.axes or tuple(map(str, self.indices))

    def _check(self) -> None:
        if not self.indices or min(self.indices) < 0 or len(set(self.indices)) < len(self.indices):
            raise InputError(f"channels {self.name!r}: indices are {self.indices}")
        if self.axes and len(self.axes) != len(self.indices):
            raise InputError(f"channels {self.name!r}: {len(self.axes)} axes of {self.indices}")
        for word in (self.name, *self.axes):
            if not word or set(word) & set("(),."):
                raise InputError(f"channel name {word!r}: must be without '(', ')', ',' and '.'")
        check_scale(self.name, self.scale)
        if self.rate_hz:
            check_number(f"channels {self.name!r}: rate_hz", self.rate_hz, 0, 1e9)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (windows,) = inputs
        rows = windows[:, :, np.newaxis] if windows.ndim == 2 else windows
        if rows.ndim != 3 or not rows.shape[1] or rows.shape[2] <= max(self.indices):
            raise InputError(
                f"signal {self.name!r}: needs windows of shape (samples, channels) that contain "
                f"channels {self.indices}; got {windows.shape[1:]}"
            )
        channels = rows.transpose(0, 2, 1)[:, _as_slice(self.indices)]
        return scaled(channels, self.scale)


@dataclass(frozen=True, kw_only=True, repr=False)
class Picture(Step):
    """A step that computes grey values, shape (n, height, width)."""


@dataclass(frozen=True, repr=False)
class Pixels(Picture):
    """Grey values of windows that are pictures, (n, height, width) or (n, height, width, 3).

    Colours become ``0.299 * red + 0.587 * green + 0.114 * blue``.

    Parameters
    ----------
    name : str
    scale : float, default 1.0
        Unit of one count; 1 / 255 maps bytes to values from 0 to 1.
    """

    kind: ClassVar[str] = "pixels"
    name: str = "image"
    scale: float = 1.0

    @property
    def label(self) -> str:
        return self.name

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        if x.ndim not in (3, 4) or not (x.shape[1] and x.shape[2]) or x.shape[3:] not in ((), (3,)):
            raise InputError(
                f"picture {self.name!r}: windows of shape {x.shape[1:]}; it reads (height, width) "
                "or (height, width, 3)"
            )
        values = scaled(x, self.scale)
        if x.ndim == 3:
            return values
        red, green, blue = (values[..., k] * LUMINANCE[k] for k in range(3))
        grey: Values = red + green + blue
        return grey

    def _check(self) -> None:
        check_scale(self.name, self.scale)


def scaled(counts: NDArray[Any], scale: float) -> Values:
    """Convert counts to their unit, float32 and contiguous."""
    if counts.dtype.kind not in "biuf":
        raise InputError(f"windows hold {counts.dtype}; give numbers")
    values = np.ascontiguousarray(counts, np.float32)
    return values if scale == 1.0 else values * np.float32(scale)


def check_scale(name: str, scale: float) -> None:
    """Raise InputError for a unit of counts that is 0 or not finite."""
    if not (isinstance(scale, float | int) and math.isfinite(scale) and scale):
        raise InputError(f"{name!r}: scale is {scale!r}; it must be a number other than 0")


def check_whole(setting: str, value: int, minimum: int, maximum: int) -> None:
    """Raise InputError, which names the setting, unless it is a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InputError(f"{setting} is {value!r}; give a whole number from {minimum} to {maximum}")


def check_number(setting: str, value: float, above: float, maximum: float) -> None:
    """Raise InputError, which names the setting, unless ``above < value <= maximum``."""
    if not isinstance(value, float | int) or not above < value <= maximum:
        raise InputError(
            f"{setting} is {value!r}; give a number above {above:g}, at most {maximum:g}"
        )


def check_rising(setting: str, values: tuple[float, ...], minimum: float, maximum: float) -> None:
    """Raise InputError, which names the setting, unless it is rising numbers in a range."""
    if (
        not isinstance(values, tuple)
        or not values
        or not all(isinstance(v, float | int) and minimum <= v <= maximum for v in values)
        or list(values) != sorted(set(values))
    ):
        raise InputError(
            f"{setting} are {values!r}; give a tuple of rising numbers from {minimum:g} to "
            f"{maximum:g}"
        )


def constant(values: NDArray[Any]) -> Values:
    """Make a read-only float32 table, which can be cached."""
    table: Values = np.ascontiguousarray(values, np.float32)
    table.flags.writeable = False
    return table


def means(x: Values) -> Values:
    """Mean along the last axis."""
    averages: Values = np.add.reduce(x, -1) / x.shape[-1]
    return averages


def centred(x: Values) -> Values:
    """Subtract its channel's mean from each sample; a constant signal becomes exactly 0.

    The first sample is subtracted, then the mean of the differences.
    """
    distances: Values = x - x[..., :1]
    distances -= np.add.reduce(distances, -1, keepdims=True) / x.shape[-1]
    return distances


def per_channel(channels: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of features for each channel, with the channel's name if there are several."""
    if len(channels) == 1:
        return words
    return tuple(f"{channel}.{word}" for channel in channels for word in words)


def _as_slice(indices: tuple[int, ...]) -> slice | list[int]:
    """Consecutive indices as a slice, which numpy does not copy."""
    start = indices[0]
    stop = indices[-1] + 1
    return slice(start, stop) if indices == tuple(range(start, stop)) else list(indices)


@cache
def settings_of(cls: type[Step]) -> dict[str, Any]:
    """Types of the fields that two equal steps have in common."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.compare}


def _text(value: Any) -> str:
    if isinstance(value, Step):
        return value.label
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
