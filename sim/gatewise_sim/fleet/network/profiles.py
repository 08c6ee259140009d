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
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from gatewise.errors import InputError
from gatewise.toml_settings import refuse_unknown, take_number, take_text, toml_table
from gatewise_sim.fleet.energy.radio import RADIOS, Radio
from gatewise_sim.fleet.network.link import LinkProfile

__all__ = ["PROFILES", "profile", "read_profile"]

_T = TypeVar("_T")

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
    """Get a profile of :data:`PROFILES` by name, or read one from a file ``*.toml``."""
    if name.endswith(".toml"):
        return read_profile(name)
    if name not in PROFILES:
        raise InputError(
            f"no link {name!r}; choose one of {', '.join(PROFILES)}, or a file such as link.toml"
        )
    return PROFILES[name]


def read_profile(path: str | Path) -> LinkProfile:
    """Read a ``link.toml``, as the module's head shows."""
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
