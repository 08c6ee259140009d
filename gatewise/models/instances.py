"""Shape and type of instances, such as images, windows of samples or rows of a table."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.documents import Meta, Record
from gatewise.errors import InputError

#: Types of the values of instances; float32 represents all values of each type exactly.
DTYPES: Final = ("float32", "float16", "int16", "int8", "uint8")
#: Largest number of values in an instance that is not a window.
MAX_VALUES: Final = 65535
#: Largest number of values in a window.
MAX_WINDOW_VALUES: Final = 1 << 20

Side = Annotated[int, Meta(ge=1, le=MAX_VALUES)]


def value_names(array: str, n_values: int) -> list[str]:
    """Name the values of an array as features, in row-major order.

    >>> value_names("window", 2)
    ['window[0]', 'window[1]']
    """
    return [f"{array}[{index}]" for index in range(n_values)]


def find_unrepresentable(values: NDArray[Any], dtype: np.dtype[Any]) -> float | None:
    """Find a finite value that an integer `dtype` cannot represent; return None if all fit.

    >>> find_unrepresentable(np.array([1.0, np.nan, 300.0]), np.dtype("uint8"))
    300.0
    """
    if dtype.kind not in "iu" or values.dtype == dtype:
        return None
    with np.errstate(invalid="ignore"):
        is_changed = (values.astype(dtype) != values) & np.isfinite(values)
    return float(values[is_changed][0]) if is_changed.any() else None


class InstanceSpec(Record, frozen=True):
    """Shape of instances, and the type of their values when they are acquired and sent."""

    shape: Annotated[tuple[Side, ...], Meta(min_length=1, max_length=8)]
    dtype: Literal["float32", "float16", "int16", "int8", "uint8"] = "float32"

    @property
    def n_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def item_size(self) -> int:
        """Number of bytes of a value in a request."""
        return np.dtype(self.dtype).itemsize

    @property
    def names(self) -> list[str]:
        """Names of the values as features, in row-major order.

        >>> InstanceSpec((1, 2)).names
        ['instance[0]', 'instance[1]']
        """
        return value_names("instance", self.n_values)

    @classmethod
    def of_rows(
        cls, X: Any, *, allow_missing: bool = False
    ) -> tuple[InstanceSpec, NDArray[np.float32]]:
        """Make the spec of rows of shape (n, ...); also return the rows flattened by :meth:`flat`.

        Raises InputError if the rows have no such shape, or too many values.
        """
        array = np.asarray(X)
        if array.ndim < 2 or not array.size:
            raise InputError(f"rows must be an array of shape (n, ...), not {array.shape}")
        dtype: Any = array.dtype.name if array.dtype.name in DTYPES else "float32"
        spec = cls(tuple(int(size) for size in array.shape[1:]), dtype)
        if spec.n_values > MAX_VALUES:
            raise InputError(
                f"an instance of shape {spec.shape} has {spec.n_values} values; at most "
                f"{MAX_VALUES} can be sent: give smaller instances to both models"
            )
        return spec, spec.flat(array, allow_missing=allow_missing)

    def flat(self, X: ArrayLike, *, allow_missing: bool = False) -> NDArray[np.float32]:
        """Flatten rows of shape (n, ...) to float32 (n, n_values).

        Raises InputError if the rows have another shape, or contain values that are not numbers or
        are infinite. NaN is an error too, unless `allow_missing`.
        """
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(X).astype(np.float32, copy=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"instances must be numbers: {error}") from None
        if array.shape[1:] not in (self.shape, (self.n_values,)):
            raise InputError(f"instances have shape {array.shape[1:]}, not {self.shape}")
        if np.isinf(array).any() or not (allow_missing or np.isfinite(array).all()):
            nan_words = "" if allow_missing else "NaN, "
            raise InputError(
                f"instances hold {nan_words}infinity or values too large for float32; drop "
                "such rows"
            )
        return np.ascontiguousarray(array.reshape(len(array), -1))
