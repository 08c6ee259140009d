"""Read instances from files of arrays, from JSON values and from mappings by feature name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import read_number
from gatewise.errors import InputError, one_line

Values = NDArray[np.float64]


def read_arrays(
    path: str | Path, names: Sequence[str], window_shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Read instances from an .npy file, or from the array ``X`` of an .npz file.

    With a `window_shape` each instance must have this shape, and is returned unchanged. Without one
    the instances are flattened to rows of float64, shape (n, len(names)). Raises InputError if the
    file cannot be read, or if its instances have another number of values or another shape.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            array = content if isinstance(content, np.ndarray) else content["X"]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except KeyError:
        raise InputError(f"{path} has no array 'X': save the rows under this name") from None
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} is not a readable file of arrays: {one_line(error)}") from None
    # without a window shape, an instance has a value per name, in any shape
    is_shape_valid = (
        array[:1].size == len(names) if window_shape is None else array.shape[1:] == window_shape
    )
    is_number = array.dtype.kind in "biuf"  # boolean, signed or unsigned integer, or float
    if array.ndim < 2 or not is_shape_valid or not is_number:
        expected_form = f"{len(names)} values" if window_shape is None else f"shape {window_shape}"
        raise InputError(
            f"{path} has {array.dtype} of shape {array.shape}; an instance must have "
            f"{expected_form}"
        )
    if window_shape is not None:
        return array
    rows: Values = array.reshape(len(array), -1).astype(np.float64)
    return rows


def read_row(instance: object, names: Sequence[str]) -> Values:
    """Read one instance: a dict by feature name, or a list in the bundle's order.

    Features that a dict lacks are missing values, like None and NaN; other keys are ignored. Nested
    lists are an array in row-major order. Raises InputError for anything else, for a dict without
    any of the features, and for a value that is not a number.

    >>> read_row({"b": 2, "x": 1}, ["a", "b"]).tolist()
    [nan, 2.0]
    """
    if isinstance(instance, dict):
        instance = order_cells(instance, names)
    while (
        isinstance(instance, list)
        and len(instance)
        and all(isinstance(element, list) for element in instance)
    ):
        instance = [value for row in instance for value in row]
    if not isinstance(instance, list) or len(instance) != len(names):
        raise InputError(
            f"an instance must be an object by feature name, or an array of {len(names)} numbers"
        )
    return np.array([*map(_json_number, instance, names)], np.float64)


def unpack_series(instance: Any) -> Any:
    """Convert a Series of pandas to a mapping by name, or to an array if it has no names."""
    if not hasattr(instance, "to_dict") or np.ndim(instance) != 1:
        return instance
    cells = instance.to_dict()
    return cells if any(isinstance(name, str) for name in cells) else instance.to_numpy()


def order_cells(
    row: Mapping[str, Any], names: Sequence[str], kind_of_names: str = "features"
) -> list[Any]:
    """List the values of a mapping in the order of `names`, with None for absent ones.

    Raises InputError if all are absent; its message calls them `kind_of_names`.
    """
    if not any(name in row for name in names):
        raise InputError(f"the instance has none of the {kind_of_names}, such as {names[0]!r}")
    return [row.get(name) for name in names]


def _json_number(value: object, name: str) -> float:
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"feature {name!r} is {str(value)[:40]!r}, not a number")
    return read_number(value)
