"""What devices report of a rollout: their retained statuses, counted by release.

A device's status names the version that it runs and, once a release has failed there, the
beginning of the digest of the last one: ``online digits/7 refused 66b4bcb045f3``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Final

from gatewise_cloud.broker.mqtt_client import open_client, refused, run_until
from gatewise_edge.link.broker_url import Endpoint, make_client
from gatewise_edge.link.topics import STATUSES
from gatewise_export.repository.release import OfferedRelease

__all__ = ["RolloutReport", "read_statuses"]

#: Seconds without a further status after which there are no more.
_QUIET_SECONDS: Final = 1.0


@dataclass(frozen=True)
class RolloutReport:
    """Devices that run a release, and those that left it because it failed there."""

    running: int
    refused: int

    @classmethod
    def from_statuses(cls, statuses: Mapping[str, str], offer: OfferedRelease) -> RolloutReport:
        """Count the statuses of a fleet, by topic."""
        words = [status.split() for status in statuses.values()]
        left = f"refused {offer.digest[:12]}".split()
        return cls(
            running=sum(w[:2] == ["online", str(offer)] for w in words),
            refused=sum(w[:1] == ["online"] and w[2:4] == left for w in words),
        )

    @property
    def failed(self) -> float:
        """Share of the devices that have run it which refused it."""
        return self.refused / max(1, self.running + self.refused)


def read_statuses(endpoint: Endpoint, *, timeout: float = 10.0) -> dict[str, str]:
    """Read every device's retained status, by topic.

    Raises LinkError if the broker cannot be reached, or does not grant it.
    """
    granted: list[bool] = []
    statuses: dict[str, str] = {}
    client = make_client(endpoint, f"gw-status-{secrets.token_hex(4)}", max_inflight=4)
    client.on_connect = lambda c, _u, _f, _reason, _p: c.subscribe(STATUSES, qos=1)
    client.on_subscribe = lambda _c, _u, _mid, reasons, _p: granted.append(
        not any(reason.is_failure for reason in reasons)
    )
    client.on_message = lambda _c, _u, message: statuses.update(
        {message.topic: message.payload.decode("utf-8", "replace")}
    )
    open_client(client, endpoint)
    try:
        if not run_until(client, lambda: bool(granted), timeout) or not granted[0]:
            raise refused(endpoint, f"it does not grant {STATUSES}")
        while run_until(client, _grows(statuses), _QUIET_SECONDS):
            pass
        return statuses
    finally:
        client.disconnect()
        client.reinitialise()


def _grows(found: Sized) -> Callable[[], bool]:
    """Whether there are more than now."""
    count = len(found)
    return lambda: len(found) > count
