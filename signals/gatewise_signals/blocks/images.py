"""Steps that compute features of images: histograms, cells of a grid, edges and differences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block
from gatewise_signals.steps import (
    Picture,
    Values,
    channel_means,
    check_number,
    check_scale,
    check_whole,
    read_only_float32,
    scale_counts,
)

#: Largest number of cells along a side of a grid.
MAX_CELLS = 1024


@dataclass(frozen=True, repr=False)
class Frame(Picture):
    """One frame of windows of shape (n, frames, height, width).

    Parameters
    ----------
    index : int
    name : str
    scale : float, default 1.0
        Value of one count.
    """

    kind: ClassVar[str] = "frame"
    index: int
    name: str = "image"
    scale: float = 1.0

    @property
    def label(self) -> str:
        return f"{self.name}[{self.index}]"

    def _check_settings(self) -> None:
        check_whole("frame: index", self.index, 0, 1 << 20)
        check_scale(self.name, self.scale)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        if x.ndim != 4 or x.shape[1] <= self.index or not x.shape[2] * x.shape[3]:
            raise InputError(
                f"{self.label}: windows of shape {x.shape[1:]}; it reads frame {self.index} of "
                "windows with the shape (frames, height, width)"
            )
        return scale_counts(x[:, self.index], self.scale)


@dataclass(frozen=True, repr=False)
class FrameDifference(Picture):
    """Absolute difference of two images of equal size, ``|after - before|``.

    Parameters
    ----------
    before, after : Picture
    """

    kind: ClassVar[str] = "difference"
    before: Picture
    after: Picture

    def run(self, *inputs: NDArray[Any]) -> Values:
        before, after = inputs
        if before.shape != after.shape:
            raise InputError(
                f"{self.label}: images of {before.shape[1:]} and {after.shape[1:]} differ in size"
            )
        difference: Values = after - before
        return np.abs(difference, out=difference)


@dataclass(frozen=True, repr=False)
class GridBlock(Block):
    """Block that computes features for the cells of a grid.

    Cell (r, c) contains the pixel rows from ``r * height // rows`` to
    ``(r + 1) * height // rows - 1``, and the pixel columns by the same rule.

    Parameters
    ----------
    source : Picture
    rows, columns : int
    """

    source: Picture
    rows: int
    columns: int

    def _check_settings(self) -> None:
        check_whole(f"{self.kind}: rows", self.rows, 1, MAX_CELLS)
        check_whole(f"{self.kind}: columns", self.columns, 1, MAX_CELLS)

    def _make_grid(self, height: int, width: int) -> _Grid:
        return _make_grid(height, width, self.rows, self.columns, self.label)


@dataclass(frozen=True, repr=False)
class Thumbnail(GridBlock):
    """Mean grey value of each cell of a grid.

    Parameters
    ----------
    source : Picture
    rows, columns : int
    """

    kind: ClassVar[str] = "thumbnail"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return _name_cells("mean", self.rows, self.columns)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        grid = self._make_grid(*x.shape[-2:])
        return _flatten_cells(_reduce_cells(np.add, x, grid) / grid.sizes)


@dataclass(frozen=True, repr=False)
class BlockStatistics(GridBlock):
    """Standard deviation, minimum and maximum of each cell of a grid.

    The standard deviations of all cells come first, followed by the minima and the maxima.

    Parameters
    ----------
    source : Picture
    rows, columns : int
    """

    kind: ClassVar[str] = "cells"

    @property
    def suffixes(self) -> tuple[str, ...]:
        prefixes = ("std", "low", "high")
        return tuple(
            name for prefix in prefixes for name in _name_cells(prefix, self.rows, self.columns)
        )

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        grid = self._make_grid(*x.shape[-2:])
        means = _reduce_cells(np.add, x, grid) / grid.sizes
        # standard deviation of a cell: sqrt(mean((x - mean of the cell)**2))
        squared_deviations = x - means.take(grid.row_of_pixel, axis=-2).take(
            grid.column_of_pixel, axis=-1
        )
        squared_deviations *= squared_deviations
        deviations = np.sqrt(_reduce_cells(np.add, squared_deviations, grid) / grid.sizes)
        minima = _reduce_cells(np.minimum, x, grid)
        maxima = _reduce_cells(np.maximum, x, grid)
        return np.concatenate(
            [_flatten_cells(deviations), _flatten_cells(minima), _flatten_cells(maxima)], axis=1
        )


@dataclass(frozen=True, repr=False)
class GreyHistogram(Block):
    """Share of the pixels in equal bins of grey values.

    A value v belongs to bin ``floor((v - low) * bins / (high - low))``. Lower values and NaN belong
    to the first bin, and higher values to the last one.

    Parameters
    ----------
    source : Picture
    bins : int, default 16
    low, high : float
        Range of values; default: 0 to 256, the range of bytes.
    """

    kind: ClassVar[str] = "histogram"
    source: Picture
    bins: int = 16
    low: float = 0.0
    high: float = 256.0

    def _check_settings(self) -> None:
        check_whole("histogram: bins", self.bins, 1, 4096)
        check_number("histogram: low", self.low, -1e9, 1e9)
        check_number("histogram: high", self.high, self.low, 1e9)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(f"bin{index}" for index in range(self.bins))

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        # bin = floor((x - low) * n_bins / (high - low)), clipped to 0 ... n_bins - 1
        bin_positions = x.reshape(len(x), -1) - np.float32(self.low)
        bin_positions *= np.float32(self.bins / (self.high - self.low))
        np.fmin(
            np.fmax(bin_positions, np.float32(0), out=bin_positions),
            np.float32(self.bins - 1),
            out=bin_positions,
        )
        counts = _count_per_bin(bin_positions.astype(np.intp), self.bins)
        return np.asarray(counts / bin_positions.shape[1], np.float32)


@dataclass(frozen=True, repr=False)
class Edges(GridBlock):
    """Mean change of grey along each axis, and the strength of edges by cell and direction.

    Let ``dx = p[r][c + 1] - p[r][c]`` and ``dy = p[r + 1][c] - p[r][c]`` at all pixels p except
    those of the last row and column. The first two features are the means of ``|dx|`` and ``|dy|``.
    The others belong to the cells of a grid of these pixels and to K directions. A pixel has the
    direction ``round(atan2(dy, dx) * K / pi) mod K``, or 0 if that is NaN. A feature is the sum of
    ``sqrt(dx**2 + dy**2)`` over the pixels of a cell with one direction, divided by the number of
    all pixels of the cell.

    Parameters
    ----------
    source : Picture
    rows, columns : int
    directions : {4, 8, 16}, default 4
        K. The limits between these directions are irrational slopes. Rounding cannot change a
        direction, because whole grey values never have such a slope.
    """

    kind: ClassVar[str] = "edges"
    directions: int = 4

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.directions not in (4, 8, 16):
            raise InputError(f"edges: directions is {self.directions!r}; give 4, 8 or 16")

    @property
    def suffixes(self) -> tuple[str, ...]:
        cells = _name_cells("", self.rows, self.columns)
        directions = (
            f"direction{direction}{cell}" for cell in cells for direction in range(self.directions)
        )
        return ("dx", "dy", *directions)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        height = x.shape[-2] - 1
        width = x.shape[-1] - 1
        grid = self._make_grid(height, width)
        pixels = x[:, :-1, :-1]
        dx = (x[:, :-1, 1:] - pixels).reshape(len(x), -1)
        dy = (x[:, 1:, :-1] - pixels).reshape(len(x), -1)
        # direction = round(atan2(dy, dx) * K / pi) mod K; fmin and fmax replace NaN by a number
        directions = np.arctan2(dy, dx)
        directions *= np.float32(self.directions / np.pi)
        half_turn = np.float32(self.directions)
        np.fmax(np.fmin(directions, half_turn, out=directions), -half_turn, out=directions)
        bins = np.rint(directions).astype(np.intp) & (self.directions - 1)
        # bin = cell * K + direction
        bins += grid.cell_of_pixel * self.directions
        n_bins = self.rows * self.columns * self.directions
        # sum of sqrt(dx**2 + dy**2) by cell and direction
        strengths = _count_per_bin(bins, n_bins, np.sqrt(dx * dx + dy * dy))
        features = np.empty((len(x), 2 + n_bins), np.float32)
        features[:, 0] = channel_means(np.abs(dx))
        features[:, 1] = channel_means(np.abs(dy))
        features[:, 2:] = strengths / np.repeat(grid.sizes.ravel(), self.directions)
        return features


@dataclass(frozen=True, eq=False)
class _Grid:
    """Grid of an image: starts and sizes of its cells, and the cell of each pixel."""

    row_starts: NDArray[np.intp]  # (rows,)
    column_starts: NDArray[np.intp]  # (columns,)
    sizes: Values  # (rows, columns): numbers of pixels
    row_of_pixel: NDArray[np.intp]  # (height,)
    column_of_pixel: NDArray[np.intp]  # (width,)
    cell_of_pixel: NDArray[np.intp]  # (height * width,): pixels and cells row by row


@lru_cache(maxsize=32)
def _make_grid(height: int, width: int, rows: int, columns: int, label: str) -> _Grid:
    """Divide an image into cells that are equally large to within a pixel of each side."""
    if height < rows or width < columns:
        raise InputError(
            f"{label}: {rows} x {columns} cells need more than {max(height, 0)} x "
            f"{max(width, 0)} pixels"
        )
    row_starts = np.arange(rows) * height // rows
    column_starts = np.arange(columns) * width // columns
    row_sizes = np.diff(row_starts, append=height)
    column_sizes = np.diff(column_starts, append=width)
    row_of_pixel = np.repeat(np.arange(rows), row_sizes)
    column_of_pixel = np.repeat(np.arange(columns), column_sizes)
    cell_of_pixel = (row_of_pixel[:, np.newaxis] * columns + column_of_pixel).ravel()
    sizes = read_only_float32(np.outer(row_sizes, column_sizes))
    return _Grid(row_starts, column_starts, sizes, row_of_pixel, column_of_pixel, cell_of_pixel)


def _reduce_cells(ufunc: np.ufunc, x: Values, grid: _Grid) -> Values:
    """Reduce the pixels of each cell by a ufunc, shape (n, rows, columns)."""
    # reduceat along the last axis adds in the same order for any number of windows
    strips = np.ascontiguousarray(ufunc.reduceat(x, grid.column_starts, axis=-1).swapaxes(1, 2))
    values: Values = ufunc.reduceat(strips, grid.row_starts, axis=-1).swapaxes(1, 2)
    return values


def _count_per_bin(
    bins: NDArray[np.intp], n_bins: int, weights: Values | None = None
) -> NDArray[Any]:
    """Count the entries of each bin per row, or add their weights, shape (n, n_bins)."""
    n_rows = len(bins)
    flat_bins = (bins + np.arange(0, n_rows * n_bins, n_bins)[:, np.newaxis]).ravel()
    flat_weights = None if weights is None else weights.ravel()
    return np.bincount(flat_bins, flat_weights, n_rows * n_bins).reshape(n_rows, n_bins)


def _flatten_cells(cells: Values) -> Values:
    return np.ascontiguousarray(cells).reshape(len(cells), -1)


def _name_cells(prefix: str, rows: int, columns: int) -> tuple[str, ...]:
    return tuple(f"{prefix}.r{row}c{column}" for row in range(rows) for column in range(columns))
