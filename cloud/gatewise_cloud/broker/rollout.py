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
from collections.abc import Callable, Iterable, Sequence, Set
from statistics import fmean
from typing import Final, Literal, NamedTuple

from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_cloud.broker.abort_limits import AbortLimits
from gatewise_cloud.broker.comparison import MIN_DEVICES
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout_report import METRICS, RolloutReport
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository, StaleVersionError

#: Share of the devices at which a comparison waits, just below a half, because groups of equal size
#: show a difference soonest. Until the last step, a tenth of the devices stay on the old release.
_COMPARISON_SHARE: Final = 0.45
_HOLDOUT_SHARE: Final = 0.9
#: Number of consecutive reports without evidence after which the release is withdrawn.
_MAX_REPORTS_WITHOUT_EVIDENCE: Final = 10
#: A comparison is given up if its decision is expected to take more than this many further reports.
#: The estimate from few reports is uncertain, so the limit of the first _N_EARLY_REPORTS is larger.
_MAX_EXPECTED_REPORTS: Final = 400
_MAX_EXPECTED_REPORTS_EARLY: Final = 4000
_N_EARLY_REPORTS: Final = 30
#: Largest number of reports of a comparison.
_MAX_COMPARISON_REPORTS: Final = 200


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
    baseline: RolloutReport | None = None,
) -> RolloutEnd:
    """Offer a release to growing shares of the devices, and withdraw it if it exceeds a limit.

    `read_report` waits for devices to update and to answer instances, and then reads their
    statuses. It returns None if the broker does not respond. A step ends with evidence, and after
    ten reports in a row without evidence the release is withdrawn. A comparison that is not
    expected to end stops the rollout below half of the devices, unless `limits` accept that.
    :func:`planned_shares` adds the steps that comparisons need.

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
    watcher = _StepWatcher(limits, read_report, latest_report)
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


class _StepWatcher:
    """Reader of the reports on the steps of a rollout.

    `has_evidence` says whether enough devices run the release. The comparisons of
    `undecided_metrics` have not ended. `n_reports` is the number of reports on the step.
    """

    def __init__(
        self,
        limits: AbortLimits,
        read_report: Callable[[OfferedRelease], RolloutReport | None],
        latest_report: RolloutReport,
    ) -> None:
        self._limits = limits
        self._read_report = read_report
        self._online_devices = latest_report.running_devices | latest_report.other_devices
        self._devices_that_ran: Set[str] = frozenset()
        self.latest_report = latest_report
        self.has_evidence = False
        self.undecided_metrics: Set[str] = frozenset()
        self.n_reports = 0

    def watch_step(
        self, offer: OfferedRelease, *, is_last_step_before_half: bool, is_last_chance: bool
    ) -> str | None:
        """Read reports until a step ends; return the reason to withdraw the release, or None.

        With `is_last_chance`, a comparison that has not ended after this step ends the rollout, so
        it goes on longer.
        """
        fraction_histories: dict[str, list[float]] = {metric: [] for metric in METRICS}
        min_reports = _N_EARLY_REPORTS if is_last_chance else _MAX_REPORTS_WITHOUT_EVIDENCE
        self.n_reports = 0
        n_without_evidence = 0
        while n_without_evidence < _MAX_REPORTS_WITHOUT_EVIDENCE:
            # read a report, and check the limits
            self.n_reports += 1
            latest_report = self._read_report(offer)
            if latest_report is None:
                self.has_evidence = False
                n_without_evidence += 1
                continue
            self.latest_report = latest_report
            n_silent = len(self._devices_that_ran & latest_report.offline_devices)
            withdrawal_reason = self._limits.reason_to_abort(latest_report, n_silent)
            self._devices_that_ran |= latest_report.running_devices
            self.has_evidence = latest_report.has_evidence(
                self._online_devices | self._devices_that_ran
            )
            if withdrawal_reason is not None:
                return withdrawal_reason
            if not self.has_evidence:
                n_without_evidence += 1
                continue
            n_without_evidence = 0
            # read further reports while a comparison may still end
            fractions = self._limits.information_fractions(
                latest_report, is_last_step_before_half=is_last_step_before_half
            )
            self.undecided_metrics = frozenset(fractions)
            for metric, fraction in fractions.items():
                fraction_histories[metric].append(fraction)
            if not any(
                _may_become_decided(fraction_histories[metric], min_reports) for metric in fractions
            ):
                self._online_devices = latest_report.running_devices | latest_report.other_devices
                # devices that run the release but report no counts give no evidence
                lacks_counts = (
                    len(latest_report.running_devices) >= MIN_DEVICES and 0.0 in fractions.values()
                )
                self.has_evidence = not lacks_counts
                return None
        return None


def _may_become_decided(fractions: Sequence[float], min_reports: int) -> bool:
    """Return whether a comparison may still end, from its information share at each report.

    If devices differ, the information stops growing although they give more answers.
    """
    n_reports = len(fractions)
    is_early = n_reports < _N_EARLY_REPORTS
    if n_reports < min_reports or (is_early and not fractions[-1]):
        return True
    # growth per report = (mean of the later half - mean of the earlier half) / reports in a half
    n_half = n_reports // 2
    growth = (fmean(fractions[-n_half:]) - fmean(fractions[:n_half])) / n_half
    max_expected_reports = _MAX_EXPECTED_REPORTS_EARLY if is_early else _MAX_EXPECTED_REPORTS
    return (
        1.0 - fractions[-1] <= growth * max_expected_reports and n_reports < _MAX_COMPARISON_REPORTS
    )


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
    offer: OfferedRelease, watcher: _StepWatcher, withdrawal_reason: str | None
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
