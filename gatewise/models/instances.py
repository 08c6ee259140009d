"""Instances of any shape as rows of values: an image, a window of samples, a table's row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError

__all__ = ["DTYPES", "MOST_VALUES", "InstanceSpec"]

DTYPES: Final = ("float32", "float16", "int16", "int8", "uint8")
"""Types of an instance's values. Models compute in float32, which holds each of them exactly."""
MOST_VALUES: Final = 65535
"""Values of an instance: the columns of a request at most."""


@dataclass(frozen=True)
class InstanceSpec:
    """Shape and type of an instance.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        Of the values as they are acquired and sent: one of :data:`DTYPES`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def n_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def item_size(self) -> int:
        """Bytes of a value in a request."""
        return np.dtype(self.dtype).itemsize

    @property
    def names(self) -> list[str]:
        """Names of the values as features, in row-major order.

        >>> InstanceSpec((1, 2)).names
        ['instance[0]', 'instance[1]']
        """
        return [f"instance[{i}]" for i in range(self.n_values)]

    @classmethod
    def of_rows(cls, X: Any) -> tuple[InstanceSpec, NDArray[np.float32]]:
        """Get shape and type from rows of shape (n, ...), and the rows flat; see :meth:`flat`."""
        array = np.asarray(X)
        if array.ndim < 2 or not array.size:
            raise InputError(f"rows must be an array of shape (n, ...), not {array.shape}")
        dtype = array.dtype.name if array.dtype.name in DTYPES else "float32"
        spec = cls(tuple(int(d) for d in array.shape[1:]), dtype)
        if spec.n_values > MOST_VALUES:
            raise InputError(
                f"an instance of shape {spec.shape} has {spec.n_values} values; at most "
                f"{MOST_VALUES} can be sent: make it smaller before both models"
            )
        return spec, spec.flat(array)

    def flat(self, X: ArrayLike) -> NDArray[np.float32]:
        """Flatten rows of shape (n, ...) to float32 (n, n_values).

        Raises
        ------
        InputError
            If they have another shape, are not numbers, or hold NaN or infinity.
        """
        try:
            with np.errstate(over="ignore"):
                x = np.asarray(X).astype(np.float32, copy=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"instances must be numbers: {error}") from None
        if x.shape[1:] not in (self.shape, (self.n_values,)):
            raise InputError(f"instances have shape {x.shape[1:]}, not {self.shape}")
        if not np.isfinite(x).all():
            raise InputError(
                "instances hold NaN, infinity or values too large for float32; drop such rows"
            )
        return np.ascontiguousarray(x.reshape(len(x), -1))
