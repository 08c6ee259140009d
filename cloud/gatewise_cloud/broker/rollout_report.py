"""State of a release on a fleet, read from the statuses of its devices.

A device's status is, for example,
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2``:
its version; the beginning of the digest of the last release that failed there; its instances,
errors and fallbacks; and, with ``--audit``, the instances that its audits stand for, and an
estimate of how many of them the high-cost model answers differently.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Self

import paho.mqtt.client as paho

from gatewise_cloud.broker.comparison import MIN_DEVICES, Comparison, Counts, GroupShare
from gatewise_cloud.broker.mqtt_client import refused, run_until, subscribed
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import STATUSES
from gatewise_export.repository.release import OfferedRelease

#: Seconds without a further status after which all have been read.
_QUIET_SECONDS: Final = 1.0
#: Share of the devices with the offer that must run the release as evidence.
_RUNNING_SHARE: Final = 0.5
#: Word of a status that holds a figure, and the position of the figure in it.
FIGURES: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}


@dataclass(frozen=True)
class RolloutReport:
    """State of a release on a fleet, as devices report it.

    Attributes
    ----------
    running, refused, elsewhere, offline, offered : set of str
        Ids of the devices that run the release; that refused it because it failed; that run another
        version of the model; that are away; and that it is offered to.
    figures, others : dict
        Counts of ``errors``, ``fallbacks`` and ``disagreement`` with the high-cost model, on each
        running device and on each device with another version.
    """

    running: Set[str] = frozenset()
    refused: Set[str] = frozenset()
    elsewhere: Set[str] = frozenset()
    offline: Set[str] = frozenset()
    offered: Set[str] = frozenset()
    figures: Mapping[str, list[Counts]] = field(default_factory=dict)
    others: Mapping[str, list[Counts]] = field(default_factory=dict)

    @classmethod
    def from_statuses(cls, statuses: Mapping[str, str], offer: OfferedRelease) -> Self:
        """Sort the statuses of a fleet, by topic."""
        words_of = {topic.split("/")[2]: status.split() for topic, status in statuses.items()}
        online = {device: w for device, w in words_of.items() if w[:1] == ["online"] and w[1:]}
        running = {device: w[2:] for device, w in online.items() if w[1] == str(offer)}
        elsewhere = {
            device: w[2:]
            for device, w in online.items()
            if device not in running and w[1].startswith(f"{offer.model}/")
        }
        refusal = ["refused", offer.digest[:12]]
        return cls(
            running=frozenset(running),
            refused=frozenset(d for d, words in elsewhere.items() if words[:2] == refusal),
            elsewhere=frozenset(elsewhere),
            offline=frozenset(words_of.keys() - online.keys()),
            offered=frozenset(device for device in words_of if offer.is_for(device)),
            figures=_figures(running.values()),
            others=_figures(elsewhere.values()),
        )

    def has_evidence(self, present: Set[str]) -> bool:
        """Whether enough of the devices with the offer run the release.

        `present` devices were online before the offer, and count although they may be away now.
        """
        missing = self.offline & present
        expected = self.running | (self.offered & (self.elsewhere | missing))
        if not expected:  # the offer reaches none of the devices that are online
            return bool(present or (self.elsewhere and not self.offline & self.offered))
        needed = max(min(MIN_DEVICES, len(expected)), _RUNNING_SHARE * len(expected))
        return len(self.running) >= needed

    def comparison(self, figure: str) -> Comparison:
        """Compare a figure of the release with the other versions."""
        groups = self.figures.get(figure, []), self.others.get(figure, [])
        return Comparison(*map(GroupShare.from_counts, groups))

    def to_dict(self) -> dict[str, float | int | None]:
        """Counts and shares; a share without reports is None."""
        shares = {figure: self.comparison(figure).own.share for figure in FIGURES}
        return {"running": len(self.running), "refused": len(self.refused)} | {
            figure: None if math.isnan(share) else share for figure, share in shares.items()
        }


def read_statuses(endpoint: Endpoint, *, timeout: float = 10.0) -> dict[str, str]:
    """Read every device's retained status, by topic.

    Raises LinkError if the broker cannot be reached, or does not grant the subscription.
    """
    statuses: dict[str, str] = {}
    last_arrival = math.inf

    def add_status(message: paho.MQTTMessage) -> None:
        nonlocal last_arrival
        # only a topic's first message counts, or a device could prolong this for ever
        if message.topic not in statuses:
            last_arrival = time.monotonic()
        statuses[message.topic] = message.payload.decode("utf-8", "replace")

    with subscribed(endpoint, STATUSES, take=add_status, timeout=timeout) as (client, granted):
        if not granted:
            raise refused(endpoint, f"it does not grant {STATUSES}")
        last_arrival = time.monotonic()
        run_until(client, lambda: time.monotonic() - last_arrival > _QUIET_SECONDS, math.inf)
        return statuses


def read_reports(
    offers: Iterable[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read the devices' reports of each release."""
    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def _figures(statuses: Iterable[list[str]]) -> dict[str, list[Counts]]:
    """Read the figures of devices; malformed words are left out."""
    figures: dict[str, list[Counts]] = {figure: [] for figure in FIGURES}
    for words in statuses:
        values = dict(word.split("=", 1) for word in words if "=" in word)
        for figure, (word, position) in FIGURES.items():
            try:
                numbers = [float(n) for n in values[word].split(",")]
                instances = numbers[0]
                cases = numbers[position]
            except (KeyError, ValueError, IndexError):
                continue
            if 1 <= instances < math.inf and 0 <= cases < math.inf:
                figures[figure].append((cases, instances))
    return figures
