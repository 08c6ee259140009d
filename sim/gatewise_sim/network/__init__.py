"""Links: profiles of real networks, outages, a proxy; the same arithmetic in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.network.direction import Direction, VirtualLink
    from gatewise_sim.network.outages import Outages
    from gatewise_sim.network.profiles import PROFILES, LinkProfile, profile, read_profile
    from gatewise_sim.network.proxy import DelayProxy

__all__ = [
    "PROFILES",
    "DelayProxy",
    "Direction",
    "LinkProfile",
    "Outages",
    "VirtualLink",
    "profile",
    "read_profile",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DelayProxy": "proxy",
        "Direction": "direction",
        "LinkProfile": "profiles",
        "Outages": "outages",
        "PROFILES": "profiles",
        "VirtualLink": "direction",
        "profile": "profiles",
        "read_profile": "profiles",
    },
)
