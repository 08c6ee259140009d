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

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from gatewise.documents.toml_settings import SettingsTable
from gatewise.errors import InputError
from gatewise_sim.fleet.energy import RADIOS, Radio
from gatewise_sim.fleet.network.link import LinkProfile

_LINK_KEYS: Final = ("like", *(field.name for field in fields(LinkProfile)))
_RADIO_KEYS: Final = ("like", *(field.name for field in fields(Radio)[1:]))

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
    """Get a profile of :data:`PROFILES` by name, or read a ``link.toml``, as above."""
    if not name.endswith(".toml"):
        if name in PROFILES:
            return PROFILES[name]
        known = ", ".join(PROFILES)
        raise InputError(f"no link {name!r}; choose one of {known}, or a file such as link.toml")
    path = Path(name)
    table = SettingsTable.read(path, "link file", _LINK_KEYS)
    base = table.choice("like", PROFILES, PROFILES["none"])
    name = table.text("name", path.stem)
    given: dict[str, Any] = table.numbers(_LINK_KEYS[2:-1], infinite=True)
    if "radio" in table.values:
        radio = table.table("radio", _RADIO_KEYS)
        like = radio.choice("like", RADIOS, base.radio)
        given["radio"] = replace(like, name=name, **radio.numbers(_RADIO_KEYS[1:]))
    with table.named_in_errors():
        return replace(base, name=name, **given)
