"""Rollout of a release in steps, which withdraws the release when devices report failures.

A step ends once there is evidence, which means that enough of the devices that were offered the
release run it, and that no limit is exceeded. A silent device gives no evidence. If it ran the
release before, its silence counts as a failure.

With a limit on a comparison (:mod:`.comparison`), half of the devices get the release only after
there is enough information to detect an excess. If the information stops growing first, the
rollout ends undecided. A tenth of the devices keep other versions until the last step, because
the comparison needs them.

Devices are not trusted, and each one counts only for its share of the fleet. A device that reports
wrong figures can cause a withdrawal, but it cannot keep a bad release in service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_cloud.broker.abort_limits import AbortLimits
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout_report import RolloutReport
from gatewise_cloud.broker.step_watcher import StepWatcher
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository, StaleVersionError

#: Share of the devices at which a comparison waits, just below a half, because groups of equal size
#: show a difference soonest. Until the last step, a tenth of the devices stay on the old release.
_COMPARISON_SHARE: Final = 0.45
_HOLDOUT_SHARE: Final = 0.9


class RolloutEnd(NamedTuple):
    """Outcome of a rollout.

    Attributes
    ----------
    offer : OfferedRelease
        Current offer of the release.
    report : RolloutReport
        Latest report.
    abort_reason : str or None
        Reason why the release did not reach its last share.
    outcome : str
        ``done``: the release reached its last share. ``withdrawn``: it exceeded a limit.
        ``no-evidence``: it was withdrawn because no evidence came. ``superseded``: another change
        of the repository replaced it. ``undecided``: a comparison did not end, and the release
        stays at its share.
    """

    offer: OfferedRelease
    report: RolloutReport
    abort_reason: str | None = None
    outcome: Literal["done", "withdrawn", "no-evidence", "superseded", "undecided"] = "done"


def roll_out(
    repository: Repository,
    release: str,
    shares: Sequence[float],
    limits: AbortLimits,
    *,
    announce: Callable[[OfferedRelease], None],
    read_report: Callable[[OfferedRelease], RolloutReport | None],
    wait: Callable[[], None],
    show_progress: Callable[[OfferedRelease, RolloutReport], None],
    baseline: RolloutReport | None = None,
) -> RolloutEnd:
    """Offer a release to growing shares of the devices, and withdraw it if it exceeds a limit.

    Before each report on a step, `wait` waits for devices to update and to answer instances.
    `read_report` reads their statuses, and returns None if the broker does not respond. A step ends
    with evidence, and after ten reports in a row without evidence the release is withdrawn. A
    comparison that is not expected to end stops the rollout below half of the devices, unless
    `limits` accept that. :func:`planned_shares` adds the steps that comparisons need.

    Devices that are online in `baseline`, the report before the first step, should stay online. A
    call after an interruption continues from the step that was reached.

    Before the first step, InputError is raised if there is no share, if the shares do not rise
    within (0, 1], or if the repository has no such release.
    """
    # plan the steps; after an interruption continue from the share that was reached
    step_shares = planned_shares(shares, limits)
    offer = repository.find(release)
    is_offered = repository.preferred_release(offer.model) == offer
    reached_share = offer.rollout / FULL_ROLLOUT if is_offered else 0.0
    latest_report = baseline or RolloutReport()
    watcher = StepWatcher(
        limits,
        read_report=read_report,
        wait=wait,
        show_progress=show_progress,
        latest_report=latest_report,
    )
    remaining_shares = deque(
        [share for share in step_shares if share >= reached_share] or step_shares[-1:]
    )
    while remaining_shares:
        # offer the next share
        share = remaining_shares.popleft()
        larger_offer = _increase_share(repository, offer, share, is_offered=is_offered)
        if larger_offer is None:
            end_reason = (
                f"{repository.preferred_release(offer.model) or 'nothing'} is offered in its place"
            )
            return RolloutEnd(
                repository.find(release), watcher.latest_report, end_reason, "superseded"
            )
        offer = larger_offer
        is_offered = True
        announce(offer)
        # an undecided comparison ends the rollout before half of the devices get the release
        is_last_step_before_half = (
            share < 0.5 and bool(remaining_shares) and remaining_shares[0] >= 0.5
        )
        withdrawal_reason = watcher.watch_step(
            offer,
            is_last_step_before_half=is_last_step_before_half,
            is_last_chance=is_last_step_before_half and share >= _COMPARISON_SHARE,
        )
        if withdrawal_reason is not None or not watcher.has_evidence:
            withdrawn_offer = repository.rollback(release)
            announce(withdrawn_offer)
            return _end_of_withdrawal(withdrawn_offer, watcher, withdrawal_reason)
        if is_last_step_before_half and watcher.undecided_metrics:
            if share < _COMPARISON_SHARE:
                remaining_shares.appendleft(_COMPARISON_SHARE)
            elif not limits.accept_undecided:
                undecided_reasons = limits.undecided_reasons(watcher.latest_report)
                end_reason = "; ".join(
                    f"{metric}: {undecided_reasons[metric]}"
                    for metric in sorted(watcher.undecided_metrics)
                )
                return RolloutEnd(offer, watcher.latest_report, end_reason, "undecided")
    return RolloutEnd(offer, watcher.latest_report)


def planned_shares(shares: Sequence[float], limits: AbortLimits) -> list[float]:
    """Check the shares of a rollout, and add the shares that a comparison needs.

    With a comparison the first share is below one half, and a share of nine tenths comes before a
    last share of 1. Raises InputError if there is no share, or if they do not rise within (0, 1].
    """
    step_shares = list(shares)
    if not step_shares or step_shares != sorted(set(step_shares)):
        raise InputError("the shares of a rollout must rise, such as 5%,25%,100%")
    for share in step_shares:
        check_rollout(share)
    if limits.worse_by is not None:
        if step_shares[0] >= 0.5:
            step_shares.insert(0, _COMPARISON_SHARE)
        if step_shares[-1] == 1.0 and step_shares[-2] < _HOLDOUT_SHARE:
            step_shares.insert(-1, _HOLDOUT_SHARE)
    return step_shares


def _end_of_withdrawal(
    offer: OfferedRelease, watcher: StepWatcher, withdrawal_reason: str | None
) -> RolloutEnd:
    """Make the outcome of a withdrawn release; without a reason there was no evidence."""
    if withdrawal_reason is not None:
        return RolloutEnd(offer, watcher.latest_report, withdrawal_reason, "withdrawn")
    n_running = len(watcher.latest_report.running_devices)
    end_reason = (
        f"no evidence in {watcher.n_reports} reports: the release runs on "
        f"{plural(n_running, 'device')}"
    )
    return RolloutEnd(offer, watcher.latest_report, end_reason, "no-evidence")


def _increase_share(
    repository: Repository, offer: OfferedRelease, share: float, *, is_offered: bool
) -> OfferedRelease | None:
    """Offer a release to a larger share; return None if another change has replaced it."""
    while not is_offered or repository.preferred_release(offer.model) == offer:
        try:
            return repository.publish(str(offer), share, expected_version=repository.version)
        except StaleVersionError:
            continue  # publish() has read the new metadata, so check it and try again
    return None


def announce(repository: Repository, offers: Iterable[OfferedRelease], endpoint: Endpoint) -> None:
    """Announce updates to the devices that run the models of these offers."""
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())
