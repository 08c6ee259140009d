"""What a radio's energy depends on, and figures of real ones.

A radio that sleeps wakes up (`wake_w` for `wake_s`), draws `active_w` while something is on the
way, pays for every byte and packet, and stays awake for a tail (`tail_w` for `tail_s`) before it
sleeps again at `idle_w`. :mod:`gatewise_sim.fleet.energy.meter` adds this up over time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from gatewise_sim.toml_settings import take_number

__all__ = ["HEADER", "RADIOS", "SEGMENT", "Radio", "ip_bytes", "packets"]

SEGMENT: Final = 1460  # bytes of payload in a full Ethernet segment
HEADER: Final = 40  # bytes of IPv4 and TCP headers on every segment


def packets(n_bytes: int) -> int:
    """Segments that carry `n_bytes` of TCP payload."""
    return -(-n_bytes // SEGMENT)


def ip_bytes(n_bytes: int) -> int:
    """Bytes of IP that `n_bytes` of TCP payload become: what an operator bills.

    Pure acknowledgements are not counted.
    """
    return n_bytes + HEADER * packets(n_bytes)


@dataclass(frozen=True)
class Radio:
    """Energy of a radio; all 0 by default.

    Parameters
    ----------
    name : str
    wake_w, wake_s : float
        Power (W) and duration (s) of waking up.
    active_w : float
        Power (W) while a transfer is under way, whatever its rate.
    up_uj_per_byte, down_uj_per_byte : float
        For every IP byte, in microjoules. A power that grows with the rate is this too:
        438 mW per Mbit/s are 3.5 uJ/byte.
    up_uj_per_packet, down_uj_per_packet : float
        For every segment, in microjoules.
    tail_w, tail_s : float
        Power (W) and duration (s) of staying awake after the last transfer.
    idle_w : float
        Power (W) asleep.

    Raises
    ------
    InputError
        If a figure is negative or not finite.

    Notes
    -----
    ``wifi`` is Feeney and Nilsson, INFOCOM 2001 (early 802.11, point to point at 2 Mbit/s).
    ``lte`` and ``3g`` are Huang et al., MobiSys 2012 (a phone). ``gsm`` is Balasubramanian et al.,
    IMC 2009. ``nb-iot`` and ``satellite`` are assumptions: a module of class 23 dBm (about 0.7 W
    sending, 0.2 W receiving) held for 20 s by the network's inactivity timer, and a terminal of
    some watts.
    """

    name: str
    wake_w: float = 0.0
    wake_s: float = 0.0
    active_w: float = 0.0
    up_uj_per_byte: float = 0.0
    down_uj_per_byte: float = 0.0
    up_uj_per_packet: float = 0.0
    down_uj_per_packet: float = 0.0
    tail_w: float = 0.0
    tail_s: float = 0.0
    idle_w: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            take_number(getattr(self, field.name), f"radio {self.name!r}: {field.name}")

    @property
    def wake_j(self) -> float:
        """Energy of one waking up, in J."""
        return self.wake_w * self.wake_s

    @property
    def tail_j(self) -> float:
        """Energy of a whole tail, in J."""
        return self.tail_w * self.tail_s

    def payload_j(self, up: int, down: int) -> float:
        """Energy (J) of the bytes and packets of `up` and `down` bytes of TCP payload."""
        return 1e-6 * (
            self.up_uj_per_byte * ip_bytes(up)
            + self.up_uj_per_packet * packets(up)
            + self.down_uj_per_byte * ip_bytes(down)
            + self.down_uj_per_packet * packets(down)
        )


_MW_PER_MBPS: Final = 8e-3  # mW per Mbit/s in uJ per byte

RADIOS: Final[dict[str, Radio]] = {
    radio.name: radio
    for radio in (
        Radio("none"),
        Radio(
            "wifi",
            up_uj_per_byte=1.9,
            up_uj_per_packet=420.0,
            down_uj_per_byte=0.42,
            down_uj_per_packet=330.0,
        ),
        Radio(
            "lte",
            wake_w=1.2107,
            wake_s=0.2601,
            active_w=1.28804,
            up_uj_per_byte=438.39 * _MW_PER_MBPS,
            down_uj_per_byte=51.97 * _MW_PER_MBPS,
            tail_w=1.060,
            tail_s=11.576,
        ),
        Radio(
            "3g",
            wake_w=0.6594,
            wake_s=0.5821,
            active_w=0.81788,
            up_uj_per_byte=868.98 * _MW_PER_MBPS,
            down_uj_per_byte=122.12 * _MW_PER_MBPS,
            tail_w=0.8039,
            tail_s=8.0882,
        ),
        # 0.036 J per kB and 1.7 J a transfer, with the tail's 6 s at 0.25 W apart.
        Radio(
            "gsm",
            wake_w=1.0,
            wake_s=1.7,
            up_uj_per_byte=36.0,
            down_uj_per_byte=36.0,
            tail_w=0.25,
            tail_s=6.0,
        ),
        Radio(
            "nb-iot",
            wake_w=0.2,
            wake_s=2.0,
            active_w=0.2,
            up_uj_per_byte=200.0,
            tail_w=0.02,
            tail_s=20.0,
            idle_w=13e-6,
        ),
        Radio(
            "satellite",
            wake_w=2.0,
            wake_s=5.0,
            active_w=2.0,
            up_uj_per_byte=60.0,
            tail_w=2.0,
            tail_s=10.0,
        ),
    )
}
