"""Prices of a fleet, and its bill for a month.

::

    currency = "EUR"
    per_mb = 0.01                 # 10**6 bytes of IP, up and down
    per_worker_hour = 0.08        # each cloud worker, day and night
    per_kwh = 0.30                # or per_joule = 8e-8: the devices' energy
    per_feature_unit = 0.0        # money for one unit of feature cost
    per_million_requests = 1.0    # as brokers for hire bill them
    per_device_month = 0.5        # a SIM card, say

Every key may be left out: what has no price is free. They may stand in a table ``[bill]`` of the
file of prices that `gatewise train` reads (docs/tables.md), so that one file prices both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from gatewise.documents.toml_settings import SettingsTable, take_number, take_text
from gatewise.errors import InputError
from gatewise.prices import PriceFile

MONTH: Final = 365.25 / 12 * 86_400.0  # seconds
_KWH: Final = 3.6e6  # joules


@dataclass(frozen=True)
class Usage:
    """What a run of so many seconds of simulated time used.

    `bytes` are of IP, up and down; `joules` of all devices; `feature_units` the feature cost of all
    instances together; `requests` messages to the cloud.
    """

    seconds: float
    devices: int = 0
    workers: int = 0
    bytes: float = 0.0
    joules: float = 0.0
    feature_units: float = 0.0
    requests: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            where = f"usage: {field.name}"
            take_number(getattr(self, field.name), where, positive=field.name == "seconds")


@dataclass(frozen=True)
class Bill:
    """Money a month, by its parts."""

    json_properties: ClassVar = ("total",)

    currency: str
    data: float
    workers: float
    energy: float
    features: float
    requests: float
    devices: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.data + self.workers + self.energy + self.features + self.requests + self.devices


@dataclass(frozen=True)
class Prices:
    """A list of prices, all 0 by default; InputError if one is negative or not finite.

    In units of `currency`: `per_mb` of IP, `per_worker_hour`, `per_joule` of the devices,
    `per_feature_unit` of feature cost, `per_million_requests`, `per_device_month`.

    A thousand devices that send a megabyte each in a day:

    >>> bill = Prices(per_mb=0.01).month(Usage(86_400, devices=1000, bytes=1e9))
    >>> round(bill.total, 3), bill.currency
    (304.375, 'EUR')
    """

    currency: str = "EUR"
    per_mb: float = 0.0
    per_worker_hour: float = 0.0
    per_joule: float = 0.0
    per_feature_unit: float = 0.0
    per_million_requests: float = 0.0
    per_device_month: float = 0.0

    def __post_init__(self) -> None:
        take_text(self.currency, "prices: currency")
        for field in fields(self)[1:]:
            take_number(getattr(self, field.name), f"prices: {field.name}")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML list of prices at `path`; InputError names the file and the key."""
        names = [field.name for field in fields(cls)]
        known = (*names, "per_kwh")
        table = SettingsTable.read(Path(path), "price file", (*known, *PriceFile.__struct_fields__))
        if table.values.keys() & set(PriceFile.__struct_fields__):
            if mixed := sorted(table.values.keys() & set(known)):
                raise InputError(f"{table.place(mixed[0])}: put it under [bill]")
            if "bill" not in table.values:
                raise InputError(f"{table.where} has no [bill]: what costs money goes there")
            table = table.table("bill", known)
        given: dict[str, Any] = table.numbers(names[1:])
        if "currency" in table.values:
            given["currency"] = table.text("currency")
        if "per_kwh" in table.values:
            if "per_joule" in given:
                raise InputError(f"{table.where}: give per_kwh or per_joule, not both")
            given["per_joule"] = table.number("per_kwh") / _KWH
        return cls(**given)

    def month(self, used: Usage) -> Bill:
        """What a month costs in which all goes on as in the run that `used` this."""
        months = MONTH / used.seconds
        return Bill(
            currency=self.currency,
            data=self.per_mb * used.bytes / 1e6 * months,
            workers=self.per_worker_hour * used.workers * MONTH / 3600.0,
            energy=self.per_joule * used.joules * months,
            features=self.per_feature_unit * used.feature_units * months,
            requests=self.per_million_requests * used.requests / 1e6 * months,
            devices=self.per_device_month * used.devices,
        )
