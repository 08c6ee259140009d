"""Shapes of a graph's values, as far as they are known before it runs."""

from __future__ import annotations

import math
from typing import Final

from gatewise_export.onnx_files.protobuf import Malformed

ROWS: Final = -(1 << 40)
"""Stands for the number of rows in shapes, and in constants that hold shapes."""

Shape = tuple[int, ...]


def row_size(shape: Shape) -> int:
    """Count the numbers of a value for one row."""
    return math.prod(1 if d == ROWS else d for d in shape)


def written(shape: Shape) -> str:
    """Write a shape as a message shows it, n for the rows."""
    return "(" + ", ".join("n" if d == ROWS else str(d) for d in shape) + ")"


def checked_axis(axis: int, ndim: int) -> int:
    """Count an axis from the first on."""
    if not -ndim <= axis < ndim:
        raise Malformed(f"axis {axis} of {ndim}")
    return axis % ndim


def joint_shape(shapes: list[Shape]) -> Shape:
    """Shape of values that are broadcast together."""
    width = max(map(len, shapes))
    made = [1] * width
    for shape in shapes:
        for i, d in enumerate(reversed(shape), 1):
            if d != made[-i] and 1 not in (d, made[-i]):
                raise Malformed(f"{' and '.join(map(written, shapes))} do not fit")
            made[-i] = d if made[-i] == 1 else made[-i]
    return tuple(made)
