"""C of one step: its call, the tables that it reads, the memory that it works in."""

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
    """Const tables of all steps; equal ones stand once.

    The cosines and sines of Fourier transforms are one table, of the longest transform.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self._tables = Tables()
        self._longest = 0

    def add(self, values: NDArray[Any] | Sequence[int], kind: str, about: str) -> str:
        """Add a table, or find it; its name."""
        flat = np.asarray(values).ravel()
        if kind == "float":
            flat = flat.astype(np.float32)
        key = kind, flat.tobytes()
        if key not in self._names:
            name = self._names[key] = f"table_{len(self._names)}"
            self._tables.add(name, flat, kind, about)
        return self._names[key]

    def transform(self, size: int) -> str:
        """Have the table of transforms reach `size`; it, and the pace in it, as arguments."""
        self._longest = max(self._longest, size)
        return f"turns, LONGEST / {size}u"

    def finished(self) -> Tables:
        """Complete the tables with that of the transforms."""
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
        Numbers of the steps that it reads; none where it reads the window.
    input_shapes : list of tuple of int
        Shapes of their results.
    tables : SignalTables
    may_overwrite : bool
        Whether it may write over its input, which is read from the window again where another step
        needs it.
    inputs : list of str
        Its inputs in C.
    work, input_floats : int
        Floats that the call works in, apart from its input and in it.
    result_in_input : bool
        Whether the result begins where the input does.
    overwritten : set of int
        Steps that read the window alone, over whose results the call writes.
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
        words = [_word(a) for a in arguments]
        result = f"it->memory + RESULT_{self.number}"
        self.text += f"{function}({', '.join([*self.inputs, *words, result])});\n"

    def call_of_rows(self, function: str, *arguments: int | float | np.float32 | str) -> None:
        """The same, of a function that takes the input's channels and their length first."""
        self.call(function, self.rows, self.length, *arguments)

    def scratch(self, floats: int) -> str:
        """Further memory to work in, of that many floats."""
        offset = self.work
        self.work += floats
        return f"it->memory + WORK_{self.number} + {offset}"

    def scratch_or_input(self, floats: int) -> str:
        """Memory to work in, of that many floats: the input's, if it may be overwritten.

        The input's is as large as necessary, if no second channel comes behind the first.
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

    def table(self, values: NDArray[Any] | Sequence[int], about: str) -> str:
        """Add a table of whole numbers; its name."""
        return self.tables.add(values, "uint32_t", about)

    def floats(self, values: Values, about: str) -> str:
        """Add a table of floats; its name."""
        return self.tables.add(values, "float", about)


def _word(value: int | float | np.float32 | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value}u" if isinstance(value, int) else number(float(np.float32(value)))
