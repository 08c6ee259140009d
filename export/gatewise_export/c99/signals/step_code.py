"""The C call of one step, with its constant tables and its working memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewise_export.c99.c_text import Tables, c_number
from gatewise_signals.steps import Step, Values

Shape: TypeAlias = tuple[int, ...]


class SignalTables:
    """Constant tables of all steps; equal tables are stored once.

    All Fourier transforms share one table of twiddle factors, which fits the longest transform.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self._tables = Tables()
        self._fft_size = 0

    def add(self, values: NDArray[Any] | Sequence[int], c_type: str, comment: str) -> str:
        """Add a table unless an equal one exists; return its name."""
        elements = np.asarray(values).ravel()
        if c_type == "float":
            elements = elements.astype(np.float32)
        key = c_type, elements.tobytes()
        if key not in self._names:
            name = self._names[key] = f"table_{len(self._names)}"
            self._tables.add(name, elements, c_type, comment)
        return self._names[key]

    def twiddle_arguments(self, size: int) -> str:
        """Make the table of twiddle factors long enough for a transform of `size`.

        Returns the C arguments for the table and its stride.
        """
        self._fft_size = max(self._fft_size, size)
        return f"twiddles, MAX_FFT_SIZE / {size}u"

    def finish(self) -> Tables:
        """Add the table of twiddle factors, and return all tables."""
        if self._fft_size:
            angles = 2 * np.pi * np.arange(self._fft_size // 2) / self._fft_size
            twiddles = np.stack([np.cos(angles), -np.sin(angles)], axis=-1).astype(np.float32)
            twiddles[twiddles == 0] = 0  # turn -0 into 0
            comment = "Cosine and negative sine of 2 pi k / MAX_FFT_SIZE"
            self._tables.add_code(f"#define MAX_FFT_SIZE {self._fft_size}u\n")
            self._tables.add("twiddles", twiddles, "float", comment)
        return self._tables


@dataclass
class StepCode:
    """The C call that computes one step for one window.

    Attributes
    ----------
    step : Step
    step_number : int
        Number of the step in C.
    result_shape : tuple of int
        Shape of its result.
    input_steps : list of int
        Numbers of the steps that it reads; empty if it reads the window.
    input_shapes : list of tuple of int
        Shapes of the results that it reads.
    tables : SignalTables
    may_overwrite : bool
        Whether the call may overwrite its input, which the step before can compute again.
    input_expressions : list of str
        C expressions of its inputs.
    scratch_floats, input_scratch_floats : int
        Size of its working memory outside the input and inside it, in floats.
    has_result_in_input : bool
        Whether the result begins at the start of the input.
    overwritten_steps : set of int
        Steps whose results the call overwrites; all of them read only the window.
    call_text : str
    """

    step: Step
    step_number: int
    result_shape: Shape
    input_steps: list[int]
    input_shapes: list[Shape]
    tables: SignalTables
    may_overwrite: bool = False
    input_expressions: list[str] = field(init=False)
    scratch_floats: int = field(default=0, init=False)
    input_scratch_floats: int = field(default=0, init=False)
    has_result_in_input: bool = field(default=False, init=False)
    overwritten_steps: set[int] = field(default_factory=set, init=False)
    call_text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        result_expressions = [f"signals->memory + RESULT_{number}" for number in self.input_steps]
        self.input_expressions = result_expressions or ["signals->window"]

    @property
    def n_rows(self) -> int:
        """Number of channels of the first input: the product of all axes but the last."""
        return math.prod(self.input_shapes[0][:-1])

    @property
    def row_length(self) -> int:
        """Number of samples or bins in a channel of the first input."""
        return self.input_shapes[0][-1]

    def write_call(self, function: str, *arguments: int | float | np.float32 | str) -> None:
        """Write ``function(inputs, arguments, result)``."""
        result_expression = f"signals->memory + RESULT_{self.step_number}"
        expressions = [*self.input_expressions, *map(_c_argument, arguments), result_expression]
        self.call_text += f"{function}({', '.join(expressions)});\n"

    def write_row_call(self, function: str, *arguments: int | float | np.float32 | str) -> None:
        """Write ``function(inputs, rows, length, arguments, result)``."""
        self.write_call(function, self.n_rows, self.row_length, *arguments)

    def reserve_scratch(self, n_floats: int) -> str:
        """Reserve working memory of that many floats; return its C expression."""
        offset = self.scratch_floats
        self.scratch_floats += n_floats
        return f"signals->memory + WORK_{self.step_number} + {offset}"

    def reserve_scratch_or_input(self, n_floats: int) -> str:
        """Reserve working memory of that many floats, inside the input if it may be overwritten.

        The memory of an input with one channel can grow to that size.
        """
        if not self.may_overwrite or (n_floats > self.row_length and self.n_rows > 1):
            return self.reserve_scratch(n_floats)
        self.input_scratch_floats = n_floats
        self.overwritten_steps.update(self.input_steps)
        return self.input_expressions[0]

    def put_result_in_input(self) -> None:
        """Place the result at the start of the input, if the input may be overwritten.

        An input with several channels is not overwritten, because the result of its first channel
        could overwrite its second channel.
        """
        self.has_result_in_input = self.may_overwrite and self.n_rows == 1

    def integer_table(self, values: NDArray[Any] | Sequence[int], comment: str) -> str:
        """Add a table of integers; return its name."""
        return self.tables.add(values, "uint32_t", comment)

    def float_table(self, values: Values, comment: str) -> str:
        """Add a table of floats; return its name."""
        return self.tables.add(values, "float", comment)


def _c_argument(value: int | float | np.float32 | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value}u" if isinstance(value, int) else c_number(float(np.float32(value)))
