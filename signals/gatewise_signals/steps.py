"""Steps that compute features from a window; blocks are the last steps.

A step reads the window or the results of other steps::

    Channels -> Spectrum -> BandPowers       (a block)
                         -> SpectralMoments  (a second block, which shares the spectrum)

Steps with equal settings are equal, and their result is computed and paid for only once. The price
of a step covers only its own computation. :meth:`.SignalGraph.costs` makes feature costs from the
prices of all steps.

Steps compute in float32 with numpy. The bits of a window's features do not depend on the other
windows, because sums run along the last axis of contiguous arrays. numpy adds in the same order
there for any number of rows.
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

#: Weights of red, green and blue (ITU-R BT.601).
LUMINANCE = tuple(np.float32(weight) for weight in (0.299, 0.587, 0.114))


@dataclass(frozen=True, kw_only=True, repr=False)
class Step(ABC):
    """Computation; the fields of a subclass are its settings, which may be other steps.

    Attributes
    ----------
    price : float or None
        Price of the computation for one window, without the steps that it reads, in microseconds
        after :func:`.measured`, or in any other unit. None if it is not known yet.
    measurement : PriceTable or None
        Table from which the price comes, if it was measured.
    """

    #: Name of the class in manifests and feature names.
    kind: ClassVar[str]
    price: float | None = field(default=None, compare=False)
    measurement: PriceTable | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, hint in settings_of(type(self)).items():
            setting_value = getattr(self, name)
            if (
                isinstance(hint, type)
                and issubclass(hint, Step)
                and not isinstance(setting_value, hint)
            ):
                raise InputError(
                    f"{self.kind}: {name} must be a {hint.__name__}, not {setting_value!r}"
                )
        if self.price is not None:
            check_price(f"the price of {self.label}", self.price)
        self._check_settings()

    def _check_settings(self) -> None:  # noqa: B027
        """Raise InputError for settings that are not valid for any window."""

    @property
    def inputs(self) -> tuple[Step, ...]:
        """Steps that this one reads; empty if it reads the window."""
        steps: list[Step] = []
        for setting_field in fields(self):
            value = getattr(self, setting_field.name)
            elements = value if isinstance(value, tuple) else (value,)
            steps += [element for element in elements if isinstance(element, Step)]
        return tuple(steps)

    @property
    def label(self) -> str:
        """Name of the step with its settings, such as ``spectrum(acc, 50)``.

        Settings that equal their defaults are left out, and those after them have their names.
        """
        texts = []
        is_any_left_out = False
        for setting_field in fields(self):
            if setting_field.name in ("price", "measurement"):
                continue
            value = getattr(self, setting_field.name)
            if setting_field.default is not None and value == setting_field.default:
                is_any_left_out = True
                continue
            # by position, a setting would take the place of one that was left out before it
            name = f"{setting_field.name}=" if is_any_left_out else ""
            texts.append(name + _write_setting(value))
        return f"{self.kind}({', '.join(texts)})"

    def __repr__(self) -> str:
        return self.label

    @abstractmethod
    def run(self, *inputs: NDArray[Any]) -> Values:
        """Compute the step for n windows.

        Parameters
        ----------
        *inputs : ndarray, shape (n, ...)
            Results of :attr:`inputs`, in order, or the windows if the step has no inputs.

        Returns
        -------
        ndarray of float32, shape (n, ...), C-contiguous
        """

    def with_prices(self, prices: Mapping[Step, float], table: PriceTable | None = None) -> Self:
        """Return a copy with `prices` from a `table` for the step and the steps that it needs."""

        def set_prices(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(set_prices(element) for element in value)
            return value.with_prices(prices, table) if isinstance(value, Step) else value

        changes = {
            setting_field.name: set_prices(getattr(self, setting_field.name))
            for setting_field in fields(self)
        }
        if self in prices:
            changes |= {"price": prices[self], "measurement": table}
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True, repr=False)
class Signal(Step):
    """Step with a result for each channel, shape (n, n_channels, samples) or (..., bins)."""

    @property
    @abstractmethod
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""


@dataclass(frozen=True, repr=False)
class ChannelwiseSignal(Signal):
    """Signal that is computed from another signal, channel by channel."""

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
        Indices of the channels in windows of shape (n, samples, channels). Windows of shape
        (n, samples) have only channel 0.
    axes : tuple of str
        Names of the channels, such as ``("x", "y", "z")``; default: their indices.
    scale : float, default 1.0
        Value of one count in the unit, for signals in whole numbers.
    unit : str
        Name of the unit, such as ``m/s2``; a device compares it with the unit of its sensor.
    rate_hz : float, default 0.0
        Samples per second; 0 if it is not known, or if the blocks state it.
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

    def _check_settings(self) -> None:
        for setting, value in (("indices", self.indices), ("axes", self.axes)):
            if not isinstance(value, tuple):
                raise InputError(
                    f"channels {self.name!r}: {setting} must be a tuple, not {value!r}"
                )
        if not self.indices or min(self.indices) < 0 or len(set(self.indices)) < len(self.indices):
            raise InputError(
                f"channels {self.name!r}: indices are {self.indices}; give distinct indices of at "
                "least 0"
            )
        if self.axes and len(self.axes) != len(self.indices):
            raise InputError(
                f"channels {self.name!r}: {len(self.axes)} axes for the indices {self.indices}"
            )
        for name_word in (self.name, *self.axes):
            if not name_word or set(name_word) & set("(),."):
                raise InputError(
                    f"channel name {name_word!r} must not contain '(', ')', ',' or '.'"
                )
        check_scale(self.name, self.scale)
        if self.rate_hz:
            check_number(f"channels {self.name!r}: rate_hz", self.rate_hz, 0, 1e9)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (windows,) = inputs
        channel_rows = windows[:, :, np.newaxis] if windows.ndim == 2 else windows
        if (
            channel_rows.ndim != 3
            or not channel_rows.shape[1]
            or channel_rows.shape[2] <= max(self.indices)
        ):
            raise InputError(
                f"signal {self.name!r}: needs windows of shape (samples, channels) that contain "
                f"channels {self.indices}; got {windows.shape[1:]}"
            )
        channels = channel_rows.transpose(0, 2, 1)[:, _as_slice(self.indices)]
        return scale_counts(channels, self.scale)


@dataclass(frozen=True, kw_only=True, repr=False)
class Picture(Step):
    """Step that computes grey values of an image, shape (n, height, width)."""


@dataclass(frozen=True, repr=False)
class Pixels(Picture):
    """Grey values of windows that are images, (n, height, width) or (n, height, width, 3).

    Colours become ``0.299 * red + 0.587 * green + 0.114 * blue``.

    Parameters
    ----------
    name : str
    scale : float, default 1.0
        Value of one count; 1 / 255 maps bytes to values from 0 to 1.
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
                f"image {self.name!r}: windows of shape {x.shape[1:]}; it reads (height, width) "
                "or (height, width, 3)"
            )
        values = scale_counts(x, self.scale)
        if x.ndim == 3:
            return values
        red, green, blue = (values[..., colour] * LUMINANCE[colour] for colour in range(3))
        grey: Values = red + green + blue
        return grey

    def _check_settings(self) -> None:
        check_scale(self.name, self.scale)


def scale_counts(counts: NDArray[Any], scale: float) -> Values:
    """Convert counts to values in their unit, float32 and contiguous."""
    if counts.dtype.kind not in "biuf":
        raise InputError(f"windows hold {counts.dtype}; give numbers")
    values = np.ascontiguousarray(counts, np.float32)
    return values if scale == 1.0 else values * np.float32(scale)


def check_scale(name: str, scale: float) -> None:
    """Raise InputError for a scale that is 0 or not finite."""
    if not (isinstance(scale, float | int) and math.isfinite(scale) and scale):
        raise InputError(f"{name!r}: scale is {scale!r}; it must be a number other than 0")


def check_whole(setting: str, value: int, minimum: int, maximum: int) -> None:
    """Raise InputError, which names the setting, unless it is a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InputError(f"{setting} is {value!r}; give a whole number from {minimum} to {maximum}")


def check_number(setting: str, value: float, lower: float, maximum: float) -> None:
    """Raise InputError, which names the setting, unless ``lower < value <= maximum``."""
    if not isinstance(value, float | int) or not lower < value <= maximum:
        raise InputError(
            f"{setting} is {value!r}; give a number above {lower:g}, at most {maximum:g}"
        )


def check_rising(setting: str, values: tuple[float, ...], minimum: float, maximum: float) -> None:
    """Raise InputError, which names the setting, unless it is a rising tuple within a range."""
    if (
        not isinstance(values, tuple)
        or not values
        or not all(
            isinstance(value, float | int) and minimum <= value <= maximum for value in values
        )
        or list(values) != sorted(set(values))
    ):
        raise InputError(
            f"{setting} are {values!r}; give a tuple of rising numbers from {minimum:g} to "
            f"{maximum:g}"
        )


def read_only_float32(values: NDArray[Any]) -> Values:
    """Make a read-only float32 array, which can be cached."""
    array: Values = np.ascontiguousarray(values, np.float32)
    array.flags.writeable = False
    return array


def channel_means(samples: Values) -> Values:
    """Compute the mean along the last axis."""
    averages: Values = np.add.reduce(samples, -1) / samples.shape[-1]
    return averages


def subtract_mean(samples: Values) -> Values:
    """Subtract the mean of each channel; a constant signal becomes exactly 0."""
    # subtract the first sample, and then the mean of the differences
    differences: Values = samples - samples[..., :1]
    differences -= np.add.reduce(differences, -1, keepdims=True) / samples.shape[-1]
    return differences


def names_per_channel(
    channels: tuple[str, ...], channel_suffixes: tuple[str, ...]
) -> tuple[str, ...]:
    """Make the feature names of each channel; they contain its name if there are several."""
    if len(channels) == 1:
        return channel_suffixes
    return tuple(f"{channel}.{suffix}" for channel in channels for suffix in channel_suffixes)


def _as_slice(indices: tuple[int, ...]) -> slice | list[int]:
    """Convert consecutive indices to a slice, for which numpy makes no copy."""
    start = indices[0]
    stop = indices[-1] + 1
    return slice(start, stop) if indices == tuple(range(start, stop)) else list(indices)


@cache
def settings_of(step_class: type[Step]) -> dict[str, Any]:
    """Map the settings of a class, which are the fields that equality compares, to their types."""
    hints = get_type_hints(step_class)
    return {
        setting_field.name: hints[setting_field.name]
        for setting_field in fields(step_class)
        if setting_field.compare
    }


def _write_setting(value: Any) -> str:
    if isinstance(value, Step):
        return value.label
    if isinstance(value, tuple):
        return " ".join(map(_write_setting, value))
    if not isinstance(value, float):
        return str(value)
    short_text = f"{value:g}"
    # different numbers have different texts
    return short_text if float(short_text) == value else repr(value)
