"""A table of what steps take for a window: measured on one machine, kept as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from gatewise.documents.toml_settings import SettingsTable
from gatewise.errors import InputError

PriceUnit: TypeAlias = Literal["us", "uj"]
"""Microseconds, microjoules."""

KIND: Final = "gatewise-block-prices"


@dataclass(frozen=True)
class PriceTable:
    """What each step of some blocks takes for one window, measured on one machine.

    :func:`.price_table` measures it, :meth:`to_document` gives the JSON document of its file, and
    a bundle holds the table of its blocks.

    Attributes
    ----------
    microseconds : mapping of str to float
        Of each step's own computation, by its label.
    shape : tuple of int
        Of a window.
    machine : str
        Where it was measured.
    windows : int
        How many were.
    watts : float or None
        Power of the processor at work; None: not known.
    unit : {"us", "uj"}
        That of the blocks' prices, microseconds or microjoules.
    """

    microseconds: Mapping[str, float]
    shape: tuple[int, ...]
    machine: str
    windows: int
    watts: float | None = None
    unit: PriceUnit = "us"

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < 1e6:
            raise InputError(f"watts is {self.watts}; give the processor's power")
        if self.unit == "uj" and self.watts is None:
            raise InputError("prices in microjoules need the processor's power: measure with watts")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the JSON document of :meth:`to_document` from the file at `path`.

        Raises
        ------
        InputError
            If it is no such file.
        """
        known = ("kind", "shape", "machine", "windows", "watts", "steps")
        table = SettingsTable.read(Path(path), "price table", known, parse=json.loads)
        table.choice("kind", {KIND: KIND})
        labels = table.get("steps")
        steps = table.table("steps", labels if isinstance(labels, dict) else ())
        each = {label: steps.table(label, ("us", "uj")) for label in steps.values}
        with table.named_in_errors():
            return cls(
                {label: entry.number("us") for label, entry in each.items()},
                tuple(map(int, table.number_list("shape", None, "axes"))),
                table.text("machine"),
                int(table.number("windows")),
                table.number("watts", positive=True) if "watts" in table.values else None,
            )

    def price(self, label: str) -> float:
        """Price of the step `label`, in the unit."""
        return self.microseconds[label] * (self.watts or 0.0 if self.unit == "uj" else 1.0)

    def microjoules(self, label: str) -> float | None:
        """Microjoules that the step `label` takes; None where the power is not known."""
        return None if self.watts is None else self.microseconds[label] * self.watts

    def to_document(self) -> dict[str, Any]:
        """Make the JSON document of the file."""
        power = {} if self.watts is None else {"watts": self.watts}
        return {
            "kind": KIND,
            "machine": self.machine,
            "shape": list(self.shape),
            "windows": self.windows,
            **power,
            "steps": {
                label: {"us": us} | ({} if self.watts is None else {"uj": us * self.watts})
                for label, us in self.microseconds.items()
            },
        }
