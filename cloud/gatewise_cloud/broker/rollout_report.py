"""Report on a release, made from the statuses of the devices of a fleet.

A device's status is, for example,
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2 trial``.
The device runs ``digits/7``. The last release that failed there has a digest that begins with
``66b4bcb045f3``. The device has seen 5120 instances, with 3 errors and 40 fallbacks. With
``--audit``, its offloads and audits represent 4900 instances. The high-cost model would answer an
estimated 51.2 of these differently. The trial of ``digits/7`` has not ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Self

import paho.mqtt.client as paho

from gatewise_cloud.broker.comparison import MIN_DEVICES, Comparison, Counts, GroupShare
from gatewise_cloud.broker.mqtt_client import (
    TIMEOUT_SECONDS,
    refusal_error,
    run_until,
    subscribed,
)
from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.topics import STATUS_TOPICS
from gatewise_export.repository.release import OfferedRelease

#: Seconds without a new status after which the report is complete.
_QUIET_SECONDS: Final = 1.0
#: Share of the devices with the offer that must run the release.
_MIN_RUNNING_SHARE: Final = 0.5
#: Word of a status that counts each metric, and the position of the count in that word.
METRICS: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}


@dataclass(frozen=True)
class RolloutReport:
    """State of a release on a fleet, as its devices report it.

    Attributes
    ----------
    running_devices, refusing_devices, trial_devices, other_devices, offline_devices, \
offered_devices : set of str
        Ids of devices. `running_devices` run the release, and `refusing_devices` refuse it because
        it failed there. `trial_devices` are the running devices with the release on trial, which
        may still fail. `other_devices` are online with another version of the model.
        `offline_devices` are not connected. `offered_devices` are all devices that get the offer.
    release_counts, other_counts : dict
        Counts of ``errors``, ``fallbacks`` and ``disagreement`` with the high-cost model by metric,
        for each of `running_devices` and for each of `other_devices`.
    """

    running_devices: Set[str] = frozenset()
    refusing_devices: Set[str] = frozenset()
    trial_devices: Set[str] = frozenset()
    other_devices: Set[str] = frozenset()
    offline_devices: Set[str] = frozenset()
    offered_devices: Set[str] = frozenset()
    release_counts: Mapping[str, list[Counts]] = field(default_factory=dict)
    other_counts: Mapping[str, list[Counts]] = field(default_factory=dict)

    @classmethod
    def from_statuses(cls, statuses: Mapping[str, str], offer: OfferedRelease) -> Self:
        """Make the report from the statuses of a fleet, a mapping by topic."""
        words_by_device = {
            topic.split("/")[2]: status.split() for topic, status in statuses.items()
        }
        online_words = {
            device: words
            for device, words in words_by_device.items()
            if words[:1] == ["online"] and words[1:]
        }
        running_words = {
            device: words[2:] for device, words in online_words.items() if words[1] == str(offer)
        }
        other_words = {
            device: words[2:]
            for device, words in online_words.items()
            if device not in running_words and words[1].startswith(f"{offer.model}/")
        }
        refusal = ["refused", offer.digest[:12]]
        return cls(
            running_devices=frozenset(running_words),
            refusing_devices=frozenset(
                device for device, words in other_words.items() if words[:2] == refusal
            ),
            trial_devices=frozenset(
                device for device, words in running_words.items() if "trial" in words
            ),
            other_devices=frozenset(other_words),
            offline_devices=frozenset(words_by_device.keys() - online_words.keys()),
            offered_devices=frozenset(device for device in words_by_device if offer.is_for(device)),
            release_counts=_read_counts(running_words.values()),
            other_counts=_read_counts(other_words.values()),
        )

    def has_evidence(self, earlier_devices: Set[str]) -> bool:
        """Return whether enough of the devices with the offer run the release.

        `earlier_devices` were online before the offer. Those with the offer count even if they are
        offline now.
        """
        missing_devices = self.offline_devices & earlier_devices
        expected_devices = self.running_devices | (
            self.offered_devices & (self.other_devices | missing_devices)
        )
        if not expected_devices:  # the offer reaches no device that is online
            return bool(
                earlier_devices
                or (self.other_devices and not self.offline_devices & self.offered_devices)
            )
        n_needed = max(
            min(MIN_DEVICES, len(expected_devices)), _MIN_RUNNING_SHARE * len(expected_devices)
        )
        return len(self.running_devices) >= n_needed

    def comparison(self, metric: str) -> Comparison:
        """Compare a metric between the release and the other versions."""
        groups = self.release_counts.get(metric, []), self.other_counts.get(metric, [])
        return Comparison(*map(GroupShare.from_counts, groups))

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the counts of devices and the shares of the release; None for unknown shares."""
        shares = {metric: self.comparison(metric).release.share for metric in METRICS}
        return {
            "running": len(self.running_devices),
            "on_trial": len(self.trial_devices),
            "refused": len(self.refusing_devices),
        } | {metric: None if math.isnan(share) else share for metric, share in shares.items()}


def read_statuses(endpoint: Endpoint) -> dict[str, str]:
    """Read the retained status of each device, by topic.

    Raises LinkError if the broker cannot be reached, does not grant the subscription, or closes the
    connection before all statuses are read.
    """
    statuses: dict[str, str] = {}
    last_arrival = math.inf

    def add_status(message: paho.MQTTMessage) -> None:
        nonlocal last_arrival
        # only the first message on a topic counts, so that no device can prolong the reading
        if message.topic not in statuses:
            last_arrival = time.monotonic()
        statuses[message.topic] = message.payload.decode("utf-8", "replace")

    session = subscribed(
        endpoint, STATUS_TOPICS, on_message=add_status, timeout_seconds=TIMEOUT_SECONDS
    )
    with session as (client, is_granted):
        if not is_granted:
            raise refusal_error(endpoint, f"it does not grant {STATUS_TOPICS}")
        last_arrival = time.monotonic()
        if not run_until(
            client, lambda: time.monotonic() - last_arrival > _QUIET_SECONDS, math.inf
        ):
            raise LinkError(
                endpoint.url, f"the connection to {endpoint.url} was lost while statuses were read"
            )
        return statuses


def read_reports(
    offers: Iterable[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read the report on each release."""
    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def _read_counts(statuses: Iterable[list[str]]) -> dict[str, list[Counts]]:
    """Read the counts in the words of statuses; malformed words are ignored."""
    counts: dict[str, list[Counts]] = {metric: [] for metric in METRICS}
    for words in statuses:
        texts_by_field = dict(word.split("=", 1) for word in words if "=" in word)
        for metric, (field_name, position) in METRICS.items():
            try:
                field_numbers = [float(number) for number in texts_by_field[field_name].split(",")]
                n_instances = field_numbers[0]
                n_cases = field_numbers[position]
            except (KeyError, ValueError, IndexError):
                continue
            # a device rounds both numbers; more cases than instances would hide all other devices
            if 1 <= n_instances < math.inf and 0 <= n_cases <= n_instances + 1:
                counts[metric].append((n_cases, n_instances))
    return counts
