"""The C code of one step: its call, its constant tables and its working memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewise_export.c99.c_text import Tables, number
from gatewise_signals.steps import Step, Values

Shape: TypeAlias = tuple[int, ...]


class SignalTables:
    """Constant tables of all steps; equal tables are written once.

    The cosines and sines of Fourier transforms are one table, of the longest transform.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self._tables = Tables()
        self._longest = 0

    def add(self, values: NDArray[Any] | Sequence[int], kind: str, comment: str) -> str:
        """Add a table unless an equal one exists; return its name."""
        flat = np.asarray(values).ravel()
        if kind == "float":
            flat = flat.astype(np.float32)
        key = kind, flat.tobytes()
        if key not in self._names:
            name = self._names[key] = f"table_{len(self._names)}"
            self._tables.add(name, flat, kind, comment)
        return self._names[key]

    def transform(self, size: int) -> str:
        """Make the cosine table long enough for a transform of `size`.

        Returns the C arguments for the table and its stride.
        """
        self._longest = max(self._longest, size)
        return f"turns, LONGEST / {size}u"

    def finished(self) -> Tables:
        """Add the cosine table, and return all tables."""
        if self._longest:
            angle = 2 * np.pi * np.arange(self._longest // 2) / self._longest
            turns = np.stack([np.cos(angle), -np.sin(angle)], axis=-1).astype(np.float32)
            turns[turns == 0] = 0  # without the sign
            self._tables.text(f"#define LONGEST {self._longest}u\n")
            self._tables.add(
                "turns", turns, "float", "Cosine and negative sine of 2 pi k / LONGEST"
            )
        return self._tables


@dataclass
class StepCode:
    """The call that computes a step for one window.

    Attributes
    ----------
    step : Step
    number : int
        Number of the step in C.
    shape : tuple of int
        Shape of its result.
    input_steps : list of int
        Numbers of the steps that it reads; empty if it reads the window.
    input_shapes : list of tuple of int
        Shapes of their results.
    tables : SignalTables
    may_overwrite : bool
        Whether it may overwrite its input, because other steps can read that input from the window
        again.
    inputs : list of str
        Its inputs in C.
    work, input_floats : int
        Floats of working memory outside the input, and inside it.
    result_in_input : bool
        Whether the result begins where the input does.
    overwritten : set of int
        Steps that read only the window and whose results the call overwrites.
    text : str
        The call.
    """

    step: Step
    number: int
    shape: Shape
    input_steps: list[int]
    input_shapes: list[Shape]
    tables: SignalTables
    may_overwrite: bool = False
    inputs: list[str] = field(init=False)
    work: int = field(default=0, init=False)
    input_floats: int = field(default=0, init=False)
    result_in_input: bool = field(default=False, init=False)
    overwritten: set[int] = field(default_factory=set, init=False)
    text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.inputs = [f"it->memory + RESULT_{i}" for i in self.input_steps] or ["it->window"]

    @property
    def rows(self) -> int:
        """Channels of the first input: all its axes but the last."""
        return math.prod(self.input_shapes[0][:-1])

    @property
    def length(self) -> int:
        """Samples or bins of a channel of the first input."""
        return self.input_shapes[0][-1]

    def call(self, function: str, *arguments: int | float | np.float32 | str) -> None:
        """Write ``function(inputs, arguments, result)``."""
        words = [_c_argument(a) for a in arguments]
        result = f"it->memory + RESULT_{self.number}"
        self.text += f"{function}({', '.join([*self.inputs, *words, result])});\n"

    def call_of_rows(self, function: str, *arguments: int | float | np.float32 | str) -> None:
        """Write ``function(inputs, rows, length, arguments, result)``."""
        self.call(function, self.rows, self.length, *arguments)

    def scratch(self, floats: int) -> str:
        """Further memory to work in, of that many floats."""
        offset = self.work
        self.work += floats
        return f"it->memory + WORK_{self.number} + {offset}"

    def scratch_or_input(self, floats: int) -> str:
        """Memory to work in, of that many floats: the input's, if it may be overwritten.

        With a single channel the input's memory can be enlarged as far as necessary.
        """
        if not self.may_overwrite or (floats > self.length and self.rows > 1):
            return self.scratch(floats)
        self.input_floats = floats
        self.overwritten.update(self.input_steps)
        return self.inputs[0]

    def put_result_in_input(self) -> None:
        """Let the result begin where the input does, if that may be overwritten.

        Not where a second channel comes behind the first, over which the result could reach.
        """
        self.result_in_input = self.may_overwrite and self.rows == 1

    def table(self, values: NDArray[Any] | Sequence[int], comment: str) -> str:
        """Add a table of integers; return its name."""
        return self.tables.add(values, "uint32_t", comment)

    def floats(self, values: Values, comment: str) -> str:
        """Add a table of floats; return its name."""
        return self.tables.add(values, "float", comment)


def _c_argument(value: int | float | np.float32 | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value}u" if isinstance(value, int) else number(float(np.float32(value)))
