"""Energy of radios and devices, and the monthly bill of a fleet.

The energy of a request depends on the previous one. An isolated LTE request needs 12 J for the tail
of the radio, and a few millijoules for its bytes. A second request within the tail only prolongs
it.

The energy of a device without its radio is read from a file::

    idle_w = 0.02              # idle power without the radio
    battery_wh = 10            # omitted for a device with mains power
    stage_j = [0.001, 0.004]   # energy of each stage on the device, or one number for all stages
    feature_j = 0.0005         # energy of each feature that [features] does not name

    [features]
    ecg = 0.2

Prices are read from another file, and are 0 by default. They may also be in the table ``[bill]`` of
the price file of ``gatewise train`` (docs/tables.md)::

    currency = "EUR"
    per_mb = 0.01                 # 10**6 bytes of IP in both directions
    per_worker_hour = 0.08        # a cloud worker, in every hour of the month
    per_kwh = 0.30                # energy of the devices
    per_feature_unit = 0.0        # one unit of feature cost
    per_million_requests = 1.0    # requests, as hosted brokers bill them
    per_device_month = 0.5        # a device, for example for its SIM card
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from gatewise.documents import Amount, DocumentError, Positive, Record, convert, parse_toml
from gatewise.formats import DAY
from gatewise.prices import PriceFile

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

JOULES_PER_WH: Final = 3600.0
#: Seconds in a mean month.
MONTH_SECONDS: Final = 365.25 / 12 * DAY
#: Largest TCP payload of an IP packet on Ethernet, in bytes.
MAX_PACKET_PAYLOAD: Final = 1460
#: Bytes of the IPv4 and TCP headers of a packet.
HEADER_BYTES: Final = 40


def count_packets(n_bytes: Any) -> Any:
    """Count the IP packets that carry `n_bytes`, a number or an array, of TCP payload."""
    return -(-n_bytes // MAX_PACKET_PAYLOAD)


# -- radios -----------------------------------------------------------------------------------


class Radio(Record, frozen=True, kw_only=True):
    """Energy of a radio; all values are 0 by default.

    Waking up takes `wake_w` (W) for `wake_s` (s). During a transfer the radio needs `active_w`, and
    microjoules per IP byte and per packet. After the last transfer the radio stays awake with
    `tail_w` for `tail_s`, and then sleeps with `idle_w`. Some sources state a power per rate, which
    is an energy per byte: 438 mW per Mbit/s are 3.5 uJ per byte.
    """

    name: str = "none"
    wake_w: Amount = 0.0
    wake_s: Amount = 0.0
    active_w: Amount = 0.0
    up_uj_per_byte: Amount = 0.0
    down_uj_per_byte: Amount = 0.0
    up_uj_per_packet: Amount = 0.0
    down_uj_per_packet: Amount = 0.0
    tail_w: Amount = 0.0
    tail_s: Amount = 0.0
    idle_w: Amount = 0.0

    def payload_joules(self, bytes_up: Any, bytes_down: Any) -> Any:
        """Compute the energy (J) of sending and receiving bytes of TCP payload."""
        n_packets_up = count_packets(bytes_up)
        n_packets_down = count_packets(bytes_down)
        return 1e-6 * (
            self.up_uj_per_byte * (bytes_up + HEADER_BYTES * n_packets_up)
            + self.up_uj_per_packet * n_packets_up
            + self.down_uj_per_byte * (bytes_down + HEADER_BYTES * n_packets_down)
            + self.down_uj_per_packet * n_packets_down
        )


_RADIOS: Final = (
    Radio(name="none"),
    # Feeney and Nilsson, INFOCOM 2001: early 802.11, point to point at 2 Mbit/s
    Radio(
        name="wifi",
        up_uj_per_byte=1.9,
        down_uj_per_byte=0.42,
        up_uj_per_packet=420.0,
        down_uj_per_packet=330.0,
    ),
    # Huang et al., MobiSys 2012: a phone, also for 3g
    Radio(
        name="lte",
        wake_w=1.2107,
        wake_s=0.2601,
        active_w=1.28804,
        up_uj_per_byte=3.50712,
        down_uj_per_byte=0.41576,
        tail_w=1.06,
        tail_s=11.576,
    ),
    Radio(
        name="3g",
        wake_w=0.6594,
        wake_s=0.5821,
        active_w=0.81788,
        up_uj_per_byte=6.95184,
        down_uj_per_byte=0.97696,
        tail_w=0.8039,
        tail_s=8.0882,
    ),
    # Balasubramanian et al., IMC 2009: 0.036 J per kB, 1.7 J per transfer, 6 s of tail at 0.25 W
    Radio(
        name="gsm",
        wake_w=1.0,
        wake_s=1.7,
        up_uj_per_byte=36.0,
        down_uj_per_byte=36.0,
        tail_w=0.25,
        tail_s=6.0,
    ),
    # assumption: a 23 dBm module (about 0.7 W sending, 0.2 W receiving) with a network that keeps
    # it connected for 20 s
    Radio(
        name="nb-iot",
        wake_w=0.2,
        wake_s=2.0,
        active_w=0.2,
        up_uj_per_byte=200.0,
        tail_w=0.02,
        tail_s=20.0,
        idle_w=13e-6,
    ),
    # assumption: a terminal of a few watts
    Radio(
        name="satellite",
        wake_w=2.0,
        wake_s=5.0,
        active_w=2.0,
        up_uj_per_byte=60.0,
        tail_w=2.0,
        tail_s=10.0,
    ),
)
#: Radios of the link profiles, by name.
RADIOS: Final = {radio.name: radio for radio in _RADIOS}


def radio_joules(
    radio: Radio,
    device: IntArray,
    begin: FloatArray,
    end: FloatArray,
    *,
    bytes_up: IntArray,
    bytes_down: IntArray,
) -> FloatArray:
    """Compute the energy (J) that each exchange adds to its device's radio, shape (n,).

    The arrays have shape (n,) and any order: device, begin and end of the exchange (s), and bytes
    of TCP payload. For an exchange from b to e, and p the latest earlier end on its device::

        asleep = b > p + tail_s
        joules = bytes and packets + active_w * max(0, e - max(b, p))
                 + (wake + whole tail if asleep else tail_w * max(0, b - p))
    """
    order = np.lexsort((begin, device))
    end = np.maximum(begin, end)[order]
    begin = begin[order]
    device = device[order]
    is_first = np.ones(len(device), np.bool_)
    is_first[1:] = device[1:] != device[:-1]
    previous_end = np.where(is_first, -np.inf, np.roll(_compute_running_max(end, is_first), 1))
    is_asleep = begin > previous_end + radio.tail_s
    awake_gap_s = np.where(is_asleep, 0.0, np.maximum(0.0, begin - previous_end))
    wake_and_tail = radio.wake_w * radio.wake_s + radio.tail_w * radio.tail_s
    joules = np.asarray(radio.payload_joules(bytes_up[order], bytes_down[order]), np.float64)
    joules += radio.active_w * np.maximum(0.0, end - np.maximum(begin, previous_end))
    joules += np.where(is_asleep, wake_and_tail, radio.tail_w * awake_gap_s)
    joules_in_input_order = np.empty(len(order))
    joules_in_input_order[order] = joules
    return joules_in_input_order


def _compute_running_max(values: FloatArray, is_first: NDArray[np.bool_]) -> FloatArray:
    """Compute the running maximum within groups of values; `is_first` marks their starts."""
    # Use ranks, because integers can be shifted by group without rounding.
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    offsets = len(values) * np.cumsum(is_first)
    return np.asarray(values[order[np.maximum.accumulate(ranks + offsets) - offsets]], np.float64)


# -- devices --------------------------------------------------------------------------------------


class DeviceEnergy(Record, frozen=True, kw_only=True):
    """Energy of a device without its radio; 0 by default.

    Parameters
    ----------
    idle_w : float
        Idle power in W.
    battery_wh : float, optional
        Capacity of the battery in Wh; None for mains power.
    stage_j : float or tuple of float
        Energy of each stage in J, or one number for all stages.
    feature_j : float
        Energy of acquiring a feature that `features` does not name, in J.
    features : dict of str to float
        Energy of acquiring each feature, in J.
    """

    idle_w: Amount = 0.0
    battery_wh: Positive | None = None
    stage_j: Amount | tuple[Amount, ...] = 0.0
    feature_j: Amount = 0.0
    features: dict[str, Amount] = msgspec.field(default_factory=dict)

    @classmethod
    def from_file(cls, path: str | Path, feature_names: Sequence[str], n_stages: int) -> Self:
        """Read the TOML file `path` for a bundle with `feature_names` and `n_stages`."""
        source = f"device file {path}"
        energy: Self = convert(parse_toml(path, source), cls, source)
        for name in energy.features:
            if name not in feature_names:
                raise DocumentError(source, f"features.{name}", "the bundle has no such feature")
        if isinstance(energy.stage_j, tuple) and len(energy.stage_j) != n_stages:
            problem = f"has {len(energy.stage_j)} entries; {n_stages} stages run on the device"
            raise DocumentError(source, "stage_j", problem)
        return energy

    def feature_joules(
        self, is_acquired: NDArray[np.bool_], feature_names: Sequence[str]
    ) -> FloatArray:
        """Compute the energy (J) of acquiring sets of the features `feature_names`, shape (n,).

        `is_acquired`, shape (n, n_features), marks the features of each set.
        """
        joules = np.array(
            [self.features.get(name, self.feature_j) for name in feature_names], np.float64
        )
        return np.asarray(is_acquired @ joules, np.float64)

    def stage_joules(self, n_stages: int) -> FloatArray:
        """Compute the energy (J) of running the first 0, 1, ..., `n_stages` stages."""
        joules_by_stage = np.broadcast_to(np.asarray(self.stage_j, np.float64), (n_stages,))
        return np.concatenate(([0.0], np.cumsum(joules_by_stage)))

    def battery_days(self, active_joules: float, radio: Radio) -> float | None:
        """Compute the battery's life (days) with `active_joules` per day.

        The result is None without a battery or without any consumption. The idle power of the
        device and of `radio` is added.
        """
        if self.battery_wh is None:
            return None
        daily_joules = active_joules + (self.idle_w + radio.idle_w) * DAY
        return self.battery_wh * JOULES_PER_WH / daily_joules if daily_joules > 0 else None


# -- money ------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that all devices and workers use in `seconds` of simulated time.

    `n_bytes` counts IP bytes in both directions, `feature_units` is the feature cost of all
    instances, and `n_requests` counts the messages to the cloud.
    """

    seconds: float
    n_devices: int = 0
    n_workers: int = 0
    n_bytes: float = 0.0
    joules: float = 0.0
    feature_units: float = 0.0
    n_requests: float = 0.0


class Bill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of a month, in units of `currency`."""

    currency: str
    data: float
    workers: float
    energy: float
    features: float
    requests: float
    devices: float

    @property
    def total(self) -> float:
        """Sum of the costs of a month."""
        return self.data + self.workers + self.energy + self.features + self.requests + self.devices


class Prices(Record, frozen=True, kw_only=True):
    """Prices in units of `currency`; 0 by default.

    `per_mb` is the price of 10**6 bytes of IP in both directions, and `per_worker_hour` the price
    of a worker in every hour of the month. `per_kwh` is the price of the devices' energy, and
    `per_feature_unit` the price of one unit of feature cost. `per_million_requests` is the price of
    messages to the cloud, and `per_device_month` the price of a device, such as its SIM card.

    A thousand devices, each of which sends a megabyte per day:

    >>> usage = Usage(seconds=86_400, n_devices=1000, n_bytes=1e9)
    >>> bill = Prices(per_mb=0.01).monthly_bill(usage)
    >>> round(bill.total, 3), bill.currency
    (304.375, 'EUR')
    """

    currency: Annotated[str, Meta(min_length=1, max_length=16)] = "EUR"
    per_mb: Amount = 0.0
    per_worker_hour: Amount = 0.0
    per_kwh: Amount = 0.0
    per_feature_unit: Amount = 0.0
    per_million_requests: Amount = 0.0
    per_device_month: Amount = 0.0

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the TOML file `path`; an InputError names the file and the key."""
        source = f"price file {path}"
        entries: Mapping[str, Any] = parse_toml(path, source)
        if entries.keys() & set(PriceFile.__struct_fields__):
            if "bill" not in entries:
                raise DocumentError(
                    source, "", "has no table [bill], which contains the prices of a bill"
                )
            bill: Self = convert(entries["bill"], cls, source, "bill")
            return bill
        prices: Self = convert(entries, cls, source)
        return prices

    def monthly_bill(self, usage: Usage) -> Bill:
        """Compute the bill of a month with the same rate of use as `usage`."""
        months = MONTH_SECONDS / usage.seconds
        return Bill(
            currency=self.currency,
            data=self.per_mb * usage.n_bytes / 1e6 * months,
            workers=self.per_worker_hour * usage.n_workers * MONTH_SECONDS / 3600.0,
            energy=self.per_kwh * usage.joules / (1000 * JOULES_PER_WH) * months,
            features=self.per_feature_unit * usage.feature_units * months,
            requests=self.per_million_requests * usage.n_requests / 1e6 * months,
            devices=self.per_device_month * usage.n_devices,
        )
