"""Links of real networks, and a user's own from a ``link.toml``.

::

    like = "4g"              # what is not said is as there; none of it: a link without delay
    name = "our LTE"
    rtt_ms = 60
    jitter_ms = 10
    down_kbps = 20000        # inf for no limit
    up_kbps = 5000
    loss = 0.01

    [radio]                  # optional
    like = "lte"
    tail_s = 5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.radio import RADIOS, Radio
from gatewise_sim.toml_settings import refuse_unknown, take_number, take_text, toml_table

__all__ = ["PROFILES", "LinkProfile", "profile", "read_profile"]

_T = TypeVar("_T")
MIN_RTO_MS: Final = 200.0  # Linux waits at least this much longer than the round trip


@dataclass(frozen=True)
class LinkProfile:
    """What a link does to bytes.

    Parameters
    ----------
    name : str
        Its name on the command line.
    rtt_ms, jitter_ms : float
        Round trip in ms, and how far it strays to either side (uniformly).
    down_kbps, up_kbps : float
        Bandwidth towards and from the device in kbit/s; infinity for no limit.
    loss : float
        Probability that a segment is lost, in [0, 1).
    radio : Radio
        Its energy; that of ``RADIOS["none"]`` (nothing) by default.

    Raises
    ------
    InputError
        If a figure cannot be; the message names the field.

    Notes
    -----
    Sources of the profiles: Loadero's network presets; Electronics 10:2224 (NB-IoT, 837 ms).
    Wi-Fi's figures, the loss on NB-IoT and satellite, and the jitter of both, are assumptions.
    """

    name: str
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    down_kbps: float = float("inf")
    up_kbps: float = float("inf")
    loss: float = 0.0
    radio: Radio = RADIOS["none"]

    def __post_init__(self) -> None:
        where = f"link {self.name!r}"
        for field in ("rtt_ms", "jitter_ms", "loss"):
            take_number(getattr(self, field), f"{where}: {field}")
        for field in ("down_kbps", "up_kbps"):
            take_number(getattr(self, field), f"{where}: {field}", positive=True, infinite=True)
        if not self.loss < 1:
            raise InputError(f"{where}: loss is {self.loss}, must be below 1")
        if self.jitter_ms > self.rtt_ms:
            raise InputError(
                f"{where}: jitter_ms is {self.jitter_ms}, must not be above rtt_ms ({self.rtt_ms})"
            )

    @property
    def delays(self) -> bool:
        """Whether it does anything to the bytes at all."""
        return replace(self, name="none", radio=RADIOS["none"]) != LinkProfile("none")

    @property
    def rto_ms(self) -> float:
        """How long TCP waits before it sends a lost segment again, in ms (as Linux does)."""
        return self.rtt_ms + max(MIN_RTO_MS, 4 * self.jitter_ms)


PROFILES: Final[dict[str, LinkProfile]] = {
    p.name: p
    for p in (
        LinkProfile("none"),
        LinkProfile("wifi", 5, 3, 50_000, 20_000, 0.001, RADIOS["wifi"]),
        LinkProfile("4g", 45, 15, 100_000, 50_000, 0.002, RADIOS["lte"]),
        LinkProfile("3g", 250, 50, 1_200, 1_200, 0.005, RADIOS["3g"]),
        LinkProfile("edge", 650, 100, 200, 260, 0.01, RADIOS["gsm"]),
        LinkProfile("nb-iot", 840, 100, 20, 20, 0.01, RADIOS["nb-iot"]),
        LinkProfile("satellite", 600, 50, 1_000, 256, 0.005, RADIOS["satellite"]),
    )
}


def profile(name: str) -> LinkProfile:
    """Get a profile of :data:`PROFILES` by name, or read one from a file ``*.toml``.

    Raises
    ------
    InputError
        If there is no such profile (the message lists those there are), or the file is not one.
    """
    if name.endswith(".toml"):
        return read_profile(name)
    if name not in PROFILES:
        raise InputError(
            f"no link {name!r}; choose one of {', '.join(PROFILES)}, or a file such as link.toml"
        )
    return PROFILES[name]


def read_profile(path: str | Path) -> LinkProfile:
    """Read a ``link.toml``, as the module's head shows.

    Raises
    ------
    InputError
        Which names the file and the field.
    """
    path = Path(path)
    where = f"link file {path}"
    table = toml_table(path, "link file")
    figures = [f.name for f in fields(LinkProfile)]
    refuse_unknown(table, ("like", *figures), where)
    base = _like(table, PROFILES, where)
    given: dict[str, Any] = {"name": take_text(table.get("name", path.stem), f"{where}: name")}
    for field in figures[1:-1]:
        if field in table:
            given[field] = take_number(table[field], f"{where}: {field}", infinite=True)
    if "radio" in table:
        given["radio"] = _radio(table["radio"], base.radio, given["name"], f"{where}: radio")
    try:
        return replace(base, **given)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _radio(table: object, base: Radio, name: str, where: str) -> Radio:
    if not isinstance(table, dict):
        raise InputError(f"{where} is {table!r}, not a table")
    figures = [f.name for f in fields(Radio)][1:]
    refuse_unknown(table, ("like", *figures), where)
    if "like" in table:
        base = _like(table, RADIOS, where)
    given = {key: take_number(table[key], f"{where}.{key}") for key in figures if key in table}
    return replace(base, name=name, **given)


def _like(table: Mapping[str, Any], known: Mapping[str, _T], where: str) -> _T:
    name = table.get("like", "none")
    if not isinstance(name, str) or name not in known:
        raise InputError(f"{where}: like is {name!r}; choose one of {', '.join(known)}")
    return known[name]
