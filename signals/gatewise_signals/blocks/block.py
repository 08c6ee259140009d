"""Base classes of blocks, and blocks that run a Python function or a part of a network.

A block is a step that computes features. Its label is its name in errors and prices. The names of
its features consist of the label and a suffix, or are given by the user.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError, one_line
from gatewise.imports import import_object, object_path, open_session
from gatewise_signals.blocks.network_part import cut_network
from gatewise_signals.steps import Signal, Step, Values, names_per_channel, scale_counts

Function: TypeAlias = Callable[[NDArray[Any]], ArrayLike]


@dataclass(frozen=True, kw_only=True, repr=False)
class Block(Step):
    """Step that computes features, shape (n, n_features)."""

    @staticmethod
    def from_function(
        function: Function,
        names: Sequence[str],
        price: float | None = None,
        *,
        name: str | None = None,
    ) -> Block:
        """Make a block from a Python `function`; see :class:`.FunctionBlock`.

        Parameters
        ----------
        function : callable
            Function from windows, (n, ...), to features, (n, n_features).
        names : sequence of str
            Names of the features.
        price : float, optional
            Price of one window, or None if it is not known yet.
        name : str, optional
            Name of the block; default: the name of the function.

        Returns
        -------
        Block
        """
        if not callable(function):
            raise InputError(f"{function!r} is not a function")
        if isinstance(names, str):
            raise InputError(f"names is {names!r}; give a list of names")
        block_name = name or str(getattr(function, "__name__", type(function).__name__))
        if block_name == "<lambda>":
            raise InputError("the block of a lambda needs a name: from_function(..., name='...')")
        path = object_path(function)
        return FunctionBlock(block_name, tuple(names), path, function, price=price)

    @staticmethod
    def from_onnx(
        path: str | PathLike[str],
        output: str,
        price: float | None = None,
        names: Sequence[str] | None = None,
        *,
        name: str | None = None,
    ) -> Block:
        """Make a block from the part of a network that computes a value; see :class:`.OnnxBlock`.

        Parameters
        ----------
        path : path
            ONNX file of the network, which is run once on zeros.
        output : str
            Name of the value.
        price : float, optional
            Price of one window, or None if it is not known yet.
        names : sequence of str, optional
            Names of the features.
        name : str, optional
            Name of the block; default: the name of the file.

        Returns
        -------
        Block
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        model, shape = cut_network(content, output, str(path))
        # run it once to count its values
        n_values = _run_network(model, np.zeros((1, math.prod(shape)), np.float32), str(path)).size
        name = name or Path(path).stem
        features = tuple(names or (f"{name}.{output}.{index}" for index in range(n_values)))
        if len(features) != n_values:
            raise InputError(f"{path}: {output!r} has {n_values} values but {len(features)} names")
        digest = hashlib.sha256(model).hexdigest()
        return OnnxBlock(name, features, output, shape, digest, model, price=price)

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Short names of the features, such as ``rms`` or ``lag4``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features; each consists of the block's label and a suffix."""
        return tuple(f"{self.label}.{suffix}" for suffix in self.suffixes)


@dataclass(frozen=True, repr=False)
class SignalBlock(Block):
    """Block that computes the same features for each channel of a signal.

    Parameters
    ----------
    source : Signal
    """

    source: Signal

    @property
    @abstractmethod
    def channel_suffixes(self) -> tuple[str, ...]:
        """Short names of the features of one channel, such as ``rms``."""

    @abstractmethod
    def values(self, x: Values) -> Values:
        """Compute features, (n, n_channels, n_features), from `x`, the result of the source."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return names_per_channel(self.source.channels, self.channel_suffixes)

    def run(self, *inputs: NDArray[Any]) -> Values:
        values = self.values(inputs[0])
        return np.ascontiguousarray(values, np.float32).reshape(len(values), -1)


@dataclass(frozen=True, repr=False)
class _NamedFeatures(Block):
    """Block that reads the window itself, with feature names that the user gives.

    `_check_settings`, which :class:`.Step` calls, checks the fields.
    """

    name: str
    features: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.features

    @property
    def suffixes(self) -> tuple[str, ...]:
        return self.features  # whole names, because the label is not put before the user's names

    def _check_settings(self) -> None:
        names = (self.name, *self.features)
        if not all(isinstance(name, str) and name and name.isprintable() for name in names):
            raise InputError(
                f"block {self.name!r}: names must be printable and not empty, but are {names}"
            )
        if not self.features or len(set(self.features)) < len(self.features):
            raise InputError(f"block {self.name!r}: names are {self.features}; each must be unique")

    def _as_features(self, output: Any, n_windows: int) -> Values:
        """Check the output of a function or network; return it with shape (n, n_features)."""
        try:
            values = np.ascontiguousarray(output, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.label} did not return numbers: {one_line(error)}") from error
        if values.shape == (n_windows,) and len(self.features) == 1:
            return values[:, np.newaxis]
        if values.shape != (n_windows, len(self.features)):
            raise InputError(
                f"{self.label} returned shape {values.shape} for {n_windows} windows; with its "
                f"{len(self.features)} names it must return ({n_windows}, {len(self.features)})"
            )
        return values


@dataclass(frozen=True, repr=False)
class FunctionBlock(_NamedFeatures):
    """Block that calls a Python function; made by ``Block.from_function``.

    The function receives windows of shape (n, ...), which it must not change, and returns their
    features, shape (n, n_features). The features of a window must not depend on the other windows.
    An exception from the function becomes an InputError with the name of the block. The block
    cannot be written as C99.

    A bundle contains the path of the function, but not its code. A program that opens the bundle
    must provide the function, for example by ``Device(bundle, blocks={"name": function})``.

    Parameters
    ----------
    name : str
    features : tuple of str
        Names of the features.
    path : str
        ``module:function``; empty if other processes cannot import the function.
    function : callable, optional
        None in a bundle.
    """

    kind: ClassVar[str] = "function"
    path: str = ""
    function: Function | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.name

    @property
    def missing_function_message(self) -> str:
        """Message that explains how to provide the function of a block in a bundle."""
        import_hint = f" ({self.path} in training)" if self.path else ""
        return (
            f"block {self.name!r} is a Python function{import_hint}, which the bundle does not "
            f"contain: give blocks={{{self.name!r}: function}}, or --block "
            f"{self.name}=module:function"
        )

    def run(self, *inputs: NDArray[Any]) -> Values:
        if self.function is None:
            raise InputError(self.missing_function_message)
        windows = inputs[0].view()
        windows.flags.writeable = False
        try:
            values = self.function(windows)
        except Exception as error:
            raise InputError(f"{self.label}: {type(error).__name__}: {one_line(error)}") from error
        return self._as_features(values, len(windows))


@dataclass(frozen=True, repr=False)
class OnnxBlock(_NamedFeatures):
    """Block that runs the part of a network that computes one value; see ``Block.from_onnx``.

    The features are the flattened values of `output`, which may be any value of the graph.
    onnxruntime runs windows one by one, because in a batch the bits of a window could depend on the
    other windows. A window has the shape of the graph's input, with or without axes of length 1, or
    is a flat row with that many values. An image of shape (height, width, channels) is transposed
    if the graph reads the channels first. The block cannot be written as C99.

    Parameters
    ----------
    name : str
    features : tuple of str
        Names of the features; default: ``name.output.0``, ``name.output.1``, ...
    output : str
        Name of the value.
    shape : tuple of int
        Shape of the graph's input without the axis of rows.
    sha256 : str
        SHA-256 hash of the model.
    model : bytes
        Graph with only the nodes that `output` needs. Its input is ``x``, float32 (n, n_values),
        and its output is ``margins``, float32 (n, n_features).
    """

    kind: ClassVar[str] = "onnx"
    output: str = ""
    shape: tuple[int, ...] = ()
    sha256: str = ""
    model: bytes = field(default=b"", compare=False, repr=False)

    @property
    def label(self) -> str:
        return f"{self.name}[{self.output}]"

    @property
    def file(self) -> str:
        """Name of the model's file in a bundle."""
        return f"block_{self.sha256[:16]}.onnx"

    def _check_settings(self) -> None:
        super()._check_settings()
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InputError(f"{self.label}: {self.sha256!r} is not a SHA-256 in hexadecimal")
        if self.model and hashlib.sha256(self.model).hexdigest() != self.sha256:
            raise InputError(f"{self.label}: the model does not match its sha256")

    def run(self, *inputs: NDArray[Any]) -> Values:
        if not self.model:
            raise InputError(f"{self.label}: its model is missing")
        rows = self._arrange_windows(inputs[0])
        outputs = [
            _run_network(self.model, rows[row : row + 1], self.label) for row in range(len(rows))
        ]
        no_features = np.empty((0, len(self.features)))
        return self._as_features(np.stack(outputs) if outputs else no_features, len(rows))

    def _arrange_windows(self, windows: NDArray[Any]) -> Values:
        """Arrange windows as rows of values in the order of the graph's input."""
        window_shape = windows.shape[1:]
        window_axes = [size for size in window_shape if size != 1]
        graph_axes = [size for size in self.shape if size != 1]
        is_channels_last = (
            len(window_shape) == 3
            and window_axes != graph_axes
            and (*window_shape[2:], *window_shape[:2]) == self.shape
        )
        is_row = len(window_shape) == 1 and window_shape[0] == math.prod(self.shape)
        if is_channels_last:
            windows = np.moveaxis(windows, -1, 1)
        elif window_axes != graph_axes and not is_row:
            raise InputError(
                f"{self.label}: got windows of shape {window_shape}, but the network reads "
                f"{self.shape}"
            )
        # only convert to float32, because the network was trained on unscaled values
        return scale_counts(windows, 1.0).reshape(len(windows), math.prod(self.shape))


# a bundle has fewer networks than this, so each is opened once
@lru_cache(maxsize=16)
def _open_session(model: bytes) -> Any:
    return open_session(model)


def _run_network(model: bytes, row: Values, label: str) -> Values:
    """Compute the features of one window; `label` names the block in errors."""
    try:
        (output,) = _open_session(model).run(None, {"x": row})
    except Exception as error:  # onnxruntime's errors have no common base class
        raise InputError(f"{label} does not run: {one_line(error)}") from error
    values: Values = output.ravel()
    return values


def load_block_functions(options: Iterable[str]) -> dict[str, Function]:
    """Import the functions of the options ``--block NAME=module:function``, by name."""
    functions = {}
    for option in options:
        name, _, path = option.rpartition("=")
        function = import_object(f"--block {option}", path)
        if not name or not callable(function):
            raise InputError(f"--block {option}: give NAME=module:function")
        functions[name] = function
    return functions
