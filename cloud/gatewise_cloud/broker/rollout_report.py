"""Report on a release, made from the statuses of the devices of a fleet.

A device's status is, for example,
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2``.
The device runs ``digits/7``, and the release whose digest begins with ``66b4bcb045f3`` was the last
one to fail there. The device has seen 5120 instances, with 3 errors and 40 fallbacks. With
``--audit``, its audits represent 4900 instances, of which the high-cost model would answer an
estimated 51.2 differently.
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

#: Seconds without a new status after which the report is complete.
_QUIET_SECONDS: Final = 1.0
#: Share of the devices with the offer that must run the release.
_MIN_RUNNING_SHARE: Final = 0.5
#: Word of a status that contains each figure, and the position of the figure in that word.
FIGURES: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}


@dataclass(frozen=True)
class RolloutReport:
    """State of a release on a fleet, as its devices report it.

    Attributes
    ----------
    running, refused, elsewhere, offline, offered : set of str
        Ids of devices. `running` devices run the release, and `refused` ones refuse it because it
        failed there. `elsewhere` are online devices with another version of the model. `offline`
        devices are not connected. `offered` are all devices that get the offer.
    figures, others : dict
        Counts of ``errors``, ``fallbacks`` and ``disagreement`` with the high-cost model. `figures`
        has those of each running device, and `others` those of each device with another version.
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
        """Make the report from the statuses of a fleet, a mapping by topic."""
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

        `present` devices were online before the offer. They count although they may be offline now.
        """
        missing = self.offline & present
        expected = self.running | (self.offered & (self.elsewhere | missing))
        if not expected:  # the offer reaches no device that is online
            return bool(present or (self.elsewhere and not self.offline & self.offered))
        n_needed = max(min(MIN_DEVICES, len(expected)), _MIN_RUNNING_SHARE * len(expected))
        return len(self.running) >= n_needed

    def comparison(self, figure: str) -> Comparison:
        """Compare a figure between the release and the other versions."""
        groups = self.figures.get(figure, []), self.others.get(figure, [])
        return Comparison(*map(GroupShare.from_counts, groups))

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the counts of devices and the shares of the release; None for unknown shares."""
        shares = {figure: self.comparison(figure).release.share for figure in FIGURES}
        return {"running": len(self.running), "refused": len(self.refused)} | {
            figure: None if math.isnan(share) else share for figure, share in shares.items()
        }


def read_statuses(endpoint: Endpoint, *, timeout: float = 10.0) -> dict[str, str]:
    """Read the retained status of each device, by topic.

    Raises LinkError if the broker cannot be reached or does not grant the subscription.
    """
    statuses: dict[str, str] = {}
    last_arrival = math.inf

    def add_status(message: paho.MQTTMessage) -> None:
        nonlocal last_arrival
        # only the first message on a topic counts, so that no device can prolong the reading
        if message.topic not in statuses:
            last_arrival = time.monotonic()
        statuses[message.topic] = message.payload.decode("utf-8", "replace")

    with subscribed(endpoint, STATUSES, on_message=add_status, timeout=timeout) as (
        client,
        is_granted,
    ):
        if not is_granted:
            raise refused(endpoint, f"it does not grant {STATUSES}")
        last_arrival = time.monotonic()
        run_until(client, lambda: time.monotonic() - last_arrival > _QUIET_SECONDS, math.inf)
        return statuses


def read_reports(
    offers: Iterable[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read the report on each release."""
    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def _figures(statuses: Iterable[list[str]]) -> dict[str, list[Counts]]:
    """Read the figures in the words of statuses; malformed words are ignored."""
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
