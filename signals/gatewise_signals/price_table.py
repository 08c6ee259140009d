"""Table of the measured times of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from gatewise.documents import Amount, DocumentError, Meta, Record, Text, decode_json, encode_json
from gatewise.errors import InputError

PriceUnit: TypeAlias = Literal["us", "uj"]
"""Microseconds, microjoules."""

Label = Annotated[str, Meta(min_length=1, max_length=1024)]
Side = Annotated[int, Meta(ge=1, le=1 << 20)]


class PriceTable(Record, frozen=True):
    """Time that each step of some blocks takes for one window, measured on one machine.

    Attributes
    ----------
    microseconds : mapping of str to float
        Time of each step without its inputs, by label.
    shape : tuple of int
        Shape of a window.
    machine : str
        Description of the machine that measured it.
    windows : int
        Number of windows measured.
    watts : float or None
        Power of the busy processor; None: not known.
    unit : {"us", "uj"}
        Unit of the blocks' prices, microseconds or microjoules.
    """

    microseconds: dict[Label, Amount]
    shape: Annotated[tuple[Side, ...], Meta(min_length=1, max_length=8)]
    machine: Text
    windows: Annotated[int, Meta(ge=1)]
    watts: Annotated[float, Meta(gt=0, lt=1e6)] | None = None
    unit: PriceUnit = "us"

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < 1e6:
            raise InputError(f"watts is {self.watts}; give the power of the processor")
        if self.unit == "uj" and self.watts is None:
            raise InputError(
                "prices in microjoules need the power of the processor: measure with watts "
                "(--watts)"
            )

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the file at `path` that :meth:`write` wrote.

        Raises
        ------
        InputError
            If the file is missing or malformed.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DocumentError(f"price table {path}", "", str(error.strerror)) from error
        return decode_json(data, cls, f"price table {path}")

    def write(self, path: str | Path) -> None:
        """Write the table as a JSON file at `path`."""
        Path(path).write_bytes(encode_json(self, indent=1))

    def price(self, label: str) -> float:
        """Price of the step `label`, in the unit."""
        return self.microseconds[label] * (self.watts or 0.0 if self.unit == "uj" else 1.0)

    def microjoules(self, label: str) -> float | None:
        """Energy of the step `label` in microjoules; None if the power is not known."""
        return None if self.watts is None else self.microseconds[label] * self.watts
