"""What a pacer keeps: so many offloads, bytes or costs, an instance or an hour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Self

from gatewise.errors import InputError

__all__ = ["Budget", "Metric"]

Metric = Literal["offloads", "bytes", "cost"]

_BUDGETS: Final[dict[str, tuple[Metric, bool]]] = {
    "offload_rate": ("offloads", False),
    "bytes": ("bytes", False),
    "cost": ("cost", False),
    "offloads_per_hour": ("offloads", True),
    "bytes_per_hour": ("bytes", True),
    "cost_per_hour": ("cost", True),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used, an instance or an hour.

    Parameters
    ----------
    name : str
        ``offload_rate``, ``bytes`` or ``cost`` an instance, or ``offloads_per_hour``,
        ``bytes_per_hour`` or ``cost_per_hour``. Bytes are payload, up and down; costs are those
        of answers, features included.
    amount : float

    Raises
    ------
    InputError
        If there is no such budget, or the amount is out of range.
    """

    name: str
    amount: float

    def __post_init__(self) -> None:
        if self.name not in _BUDGETS:
            raise InputError(f"pacer: no budget {self.name!r}; choose one of {', '.join(_BUDGETS)}")
        if not 0 < self.amount < math.inf:
            raise InputError(f"pacer: {self.name} is {self.amount}; give a positive number")
        if self.name == "offload_rate" and self.amount >= 1:
            raise InputError(f"pacer: offload_rate is {self.amount}; it must be below 1")

    @property
    def metric(self) -> Metric:
        """What is counted."""
        return _BUDGETS[self.name][0]

    @property
    def hourly(self) -> bool:
        """Whether it is for an hour, not for an instance."""
        return _BUDGETS[self.name][1]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``name=amount``, as ``offload_rate=0.1``.

        Raises
        ------
        InputError
            If it has another form.
        """
        name, _, amount = text.partition("=")
        try:
            return cls(name.strip(), float(amount))
        except ValueError:
            raise InputError(
                f"pacer: {text!r}; give a budget as offload_rate=0.1 or bytes_per_hour=1e6"
            ) from None
