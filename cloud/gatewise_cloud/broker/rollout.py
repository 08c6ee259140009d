"""Roll a release out in steps, and withdraw it when devices report that it does badly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gatewise.errors import InputError
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout_reports import AbortLimits, RolloutReport, read_statuses
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_export.repository.release import WHOLE, OfferedRelease
from gatewise_export.repository.repository import Repository

#: Times that a step waits while figures are vague.
_LONGEST_STEP: Final = 10


class RolloutEnd(NamedTuple):
    """How a rollout ended: the release as it is offered now, what was reported, why it stopped."""

    offer: OfferedRelease
    report: RolloutReport
    aborted: str | None


def roll_out(
    repository: Repository,
    release: str,
    shares: Sequence[float],
    limits: AbortLimits,
    *,
    announce: Callable[[OfferedRelease], None],
    report: Callable[[OfferedRelease], RolloutReport],
    wait: Callable[[], None],
    progress: Callable[[OfferedRelease, RolloutReport], None],
) -> RolloutEnd:
    """Offer a release to growing shares of the devices; withdraw it once it passes a limit.

    In each step, the last one too, `wait` passes the time in which devices take the release and
    answer, then `report` gives what they say of it; where that is too vague for the limit, the step
    goes on, for ten such times at most. A run that is interrupted leaves the release
    at its step; run again, it goes on with the steps above.

    Raises InputError if the shares do not rise, or there is no such release.
    """
    if list(shares) != sorted(set(shares)):
        raise InputError("the shares of a rollout must rise, as 5%,25%,100%")
    offered = next((o for o in repository.offers() if o.rollout), None)
    reached = 0.0
    if offered is not None and release in (str(offered), offered.version):
        reached = offered.rollout / WHOLE
    for share in [s for s in shares if s >= reached] or [shares[-1]]:
        offer = repository.publish(release, share)
        announce(offer)
        for _ in range(_LONGEST_STEP):
            wait()
            found = report(offer)
            progress(offer, found)
            if not limits.is_vague(found):
                break
        reason = limits.reason_to_abort(found)
        if reason is not None:
            offer = repository.rollback(offer.model)
            announce(offer)
            return RolloutEnd(offer, found, reason)
    return RolloutEnd(offer, found, None)


def announce(repository: Repository, offers: Iterable[OfferedRelease], endpoint: Endpoint) -> None:
    """Announce to the devices of the offers' models that there is news."""
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())


def read_reports(
    offers: Iterable[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read what devices report of each release."""
    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}
