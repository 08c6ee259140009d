"""Table with the measured times of steps, from which prices are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from gatewise.documents import Amount, DocumentError, Meta, Record, Text, decode_json, encode_json
from gatewise.errors import InputError

#: Unit of prices: microseconds or microjoules.
PriceUnit: TypeAlias = Literal["us", "uj"]

#: The power of the processor must be below this.
MAX_WATTS: Final = 1e6

StepLabel = Annotated[str, Meta(min_length=1, max_length=1024)]
SideLength = Annotated[int, Meta(ge=1, le=1 << 20)]


class PriceTable(Record, frozen=True):
    """Measured time of each step for one window on one machine.

    Attributes
    ----------
    microseconds : mapping of str to float
        Time of each step, without the steps that it reads, by label.
    shape : tuple of int
        Shape of a window.
    machine : str
        Description of the machine.
    windows : int
        Number of windows in the measurement.
    watts : float or None
        Power of the busy processor in watts, or None if it is not known.
    unit : {"us", "uj"}
        Unit of the prices, microseconds or microjoules.
    """

    microseconds: dict[StepLabel, Amount]
    shape: Annotated[tuple[SideLength, ...], Meta(min_length=1, max_length=8)]
    machine: Text
    windows: Annotated[int, Meta(ge=1)]
    watts: Annotated[float, Meta(gt=0, lt=MAX_WATTS)] | None = None
    unit: PriceUnit = "us"

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < MAX_WATTS:  # only decoding checks Meta
            raise InputError(f"watts is {self.watts}; give the power of the busy processor")
        if self.unit == "uj" and self.watts is None:
            raise InputError(
                "prices in microjoules need the power of the processor: give watts (--watts) when "
                "you measure"
            )

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the file `path`, which :meth:`write` has written.

        Raises
        ------
        DocumentError
            If the file is missing or malformed; a subclass of InputError.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DocumentError(f"price table {path}", "", str(error.strerror)) from error
        return decode_json(content, cls, f"price table {path}")

    def write(self, path: str | Path) -> None:
        """Write the table as the JSON file `path`."""
        Path(path).write_bytes(encode_json(self, indent=1))

    def price(self, label: str) -> float:
        """Compute the price of the step `label` in the table's unit; KeyError if it has no time."""
        if self.unit == "us":
            return self.microseconds[label]
        assert self.watts is not None  # __post_init__ refuses such a table
        return self.microseconds[label] * self.watts

    def microjoules(self, label: str) -> float | None:
        """Energy of the step `label` in microjoules, or None if the power is unknown."""
        return None if self.watts is None else self.microseconds[label] * self.watts
