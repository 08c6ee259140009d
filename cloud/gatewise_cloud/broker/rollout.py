"""Rollout of a release in steps, which withdraws the release when devices report failures.

A step ends with evidence: enough of the devices that are offered the release run it, and it exceeds
no limit. A silent device gives no evidence. If it ran the release before, its silence counts as a
failure.

With a limit on a comparison (:mod:`.comparison`), half of the devices get the release only after
there is enough information to detect an excess. If the information stops growing first, the
rollout ends undecided. A tenth of the devices keep other versions until the last step, so that the
comparison continues.

Devices are not trusted, and each one counts only for its share of the fleet. A device that reports
wrong figures can cause a withdrawal, but it cannot keep a bad release in service.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from statistics import fmean
from typing import Annotated, Final, Literal, NamedTuple

import typer
from msgspec import Meta

from gatewise.errors import InputError
from gatewise.settings import Settings
from gatewise_cloud.broker.comparison import (
    ALPHA,
    EFFECT,
    MIN_DEVICES,
    answers_to_find,
)
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout_report import FIGURES, RolloutReport
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_export.repository.release import WHOLE, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository, StaleVersionError

#: Number of looks without evidence at a step after which the release is withdrawn.
_MAX_LOOKS_WITHOUT_EVIDENCE: Final = 10
#: Number of looks after which a comparison ends unless it is expected to be decided soon.
_EARLY_LOOKS: Final = 30
#: A comparison ends unless it is expected to be decided within this many further looks, and
#: the factor by which this number is multiplied before _EARLY_LOOKS looks.
_MAX_EXPECTED_LOOKS: Final = 400
_EARLY_FACTOR: Final = 10
#: Largest number of looks at a comparison.
_MAX_COMPARISON_LOOKS: Final = 200
#: Largest share of the devices until a comparison ends, and until the last step.
_COMPARISON_SHARE: Final = 0.45
_HOLDOUT_SHARE: Final = 0.9
#: Smallest number of failures for which a release is withdrawn.
_MIN_FAILURES: Final = 3


def read_share(text: str) -> float:
    """Read a share such as ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a share: give one as 10% or 0.1") from None


_Limit = Annotated[float, Meta(ge=0, lt=1)]


class AbortLimits(Settings, frozen=True):
    """Limits beyond which a release is withdrawn.

    `failed` limits the share of failures among the devices that ran the release. A failure is a
    device on which the release failed its trial, or which fell silent. Fewer than three failures
    never exceed the limit.

    `worse_by` limits the excess of the release's share of errors, fallbacks or disagreement over
    the share with other versions. A figure is compared once three devices with the release and
    three others report it. A release that keeps the limit is withdrawn with probability
    :data:`.ALPHA` at most. An undecided comparison stops the rollout below half of the devices,
    unless `accept_undecided`.
    """

    failed: Annotated[
        _Limit | None,
        typer.Option(
            "--above",
            parser=read_share,
            metavar="SHARE",
            help="Largest share of failures among devices that ran the release, such as 5%.",
        ),
    ] = None
    worse_by: Annotated[
        _Limit | None,
        typer.Option(
            parser=read_share,
            metavar="SHARE",
            help="Largest excess of the release's share of errors, fallbacks or (devices with "
            "--audit) disagreement with the high-cost model over other versions, such as 1%.",
        ),
    ] = None
    accept_undecided: Annotated[
        bool,
        typer.Option(
            "--accept-undecided",
            help="Continue if --worse-by cannot be decided because devices differ too much.",
        ),
    ] = False

    def __bool__(self) -> bool:
        return self.failed is not None or self.worse_by is not None

    def not_compared(self, report: RolloutReport) -> dict[str, str]:
        """Explain which comparisons have not ended, by figure; empty without `worse_by`."""
        if self.worse_by is None:
            return {}
        reasons = {}
        for figure, (word, _) in FIGURES.items():
            release, others = report.comparison(figure)
            if min(release.n_devices, others.n_devices) < MIN_DEVICES:
                reasons[figure] = (
                    f"{release.n_devices} devices with the release and {others.n_devices} with "
                    f"other versions report it, but {MIN_DEVICES} of each are needed"
                    + (" (gatewise edge --audit)" if word == "audited" else "")
                )
        for figure, share in self.progress(report, is_gate=True).items():
            if figure not in reasons:
                reasons[figure] = (
                    f"devices differ too much, or answered too few instances, to detect "
                    f"{100 * EFFECT:.0f} points above the limit: only {share:.0%} of the needed "
                    "information is available"
                )
        return reasons

    def answers_to_find(self, baseline: RolloutReport) -> dict[str, float]:
        """Estimate how many answers are needed to detect EFFECT above `worse_by`, by figure."""
        if self.worse_by is None:
            return {}
        counts = {figure: baseline.others.get(figure, []) for figure in FIGURES}
        return {
            figure: answers_to_find(devices)
            for figure, devices in counts.items()
            if len(devices) >= MIN_DEVICES
        }

    def progress(self, report: RolloutReport, *, is_gate: bool) -> dict[str, float]:
        """Compute the share of the needed information for each comparison that has not ended.

        At a gate a comparison ends once it can detect EFFECT. At other steps it ends once the
        standard error is below EFFECT or the limit. A figure is not compared if too few devices
        with other versions report it.
        """
        shares: dict[str, float] = {}
        if self.worse_by is None or (len(report.running) < MIN_DEVICES and not is_gate):
            return shares
        for figure in FIGURES:
            comparison = report.comparison(figure)
            if comparison.others.n_devices < MIN_DEVICES:
                continue
            if comparison.release.n_devices < MIN_DEVICES:
                shares[figure] = 0.0
            elif is_gate:
                shares[figure] = comparison.power
            else:
                shares[figure] = (max(self.worse_by, EFFECT) / comparison.error) ** 2
        return {figure: share for figure, share in shares.items() if share < 1.0}

    def reason_to_abort(self, report: RolloutReport, n_silent: int = 0) -> str | None:
        """Get the reason to withdraw a release, or None; `n_silent` devices fell silent."""
        n_failures = len(report.refused) + n_silent
        n_ran = len(report.running) + n_failures
        limit = math.inf if self.failed is None else self.failed * n_ran
        if n_failures >= _MIN_FAILURES and n_failures > limit:
            silence = f", {n_silent} of which fell silent" if n_silent else ""
            return f"it failed on {n_failures} of {n_ran} devices{silence}"
        if self.worse_by is not None:
            for figure in FIGURES:
                comparison = report.comparison(figure)
                if comparison.evidence(self.worse_by) >= len(FIGURES) / ALPHA:
                    return (
                        f"{figure} {100 * comparison.release.share:.1f} %, "
                        f"{100 * comparison.excess:.1f} points more than with other versions "
                        f"(standard error {100 * comparison.error:.2f})"
                    )
        return None


class RolloutEnd(NamedTuple):
    """Outcome of a rollout.

    Attributes
    ----------
    offer : OfferedRelease
        Present offer of the release.
    report : RolloutReport
        The last report.
    aborted : str or None
        Reason why the release did not reach its last share.
    kind : str
        ``done`` if the release reached its last share, and ``withdrawn`` if it exceeded a limit.
        ``no-evidence`` if it was withdrawn because no evidence came. ``superseded`` if another
        change of the repository replaced it. ``undecided`` if a comparison did not end; the release
        then stays at its share.
    """

    offer: OfferedRelease
    report: RolloutReport
    aborted: str | None = None
    kind: Literal["done", "withdrawn", "no-evidence", "superseded", "undecided"] = "done"


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
    baseline: RolloutReport | None = None,
) -> RolloutEnd:
    """Offer a release to growing shares of the devices, and withdraw it if it exceeds a limit.

    At each look at a step, `wait` waits for devices to update and to answer instances, and `report`
    reads their statuses. A step ends with evidence. After ten looks without evidence the release is
    withdrawn. A comparison that is not expected to end stops the rollout below half of the devices,
    unless `limits` accept that. :func:`planned_shares` adds the steps that comparisons need.

    Devices that are online in `baseline`, the report before the first step, should stay online. A
    call after an interruption continues from the step that was reached.

    Raises InputError before the first step if the shares do not rise within (0, 1], or if the
    repository has no such release.
    """
    # plan the steps; after an interruption continue from the share that was reached
    plan = planned_shares(shares, limits)
    offer = repository.find(release)
    is_offered = repository.wanted(offer.model) == offer
    reached_share = offer.rollout / WHOLE if is_offered else 0.0
    latest = baseline or RolloutReport()
    watch = _RolloutWatch(limits, report=report, wait=wait, progress=progress, latest=latest)
    steps = deque([share for share in plan if share >= reached_share] or plan[-1:])
    while steps:
        # offer the next share
        share = steps.popleft()
        new_offer = _increase_share(repository, offer, share, is_offered=is_offered)
        if new_offer is None:
            cause = f"{repository.wanted(offer.model) or 'nothing'} is offered in its place"
            return RolloutEnd(repository.find(release), watch.latest, cause, "superseded")
        offer = new_offer
        is_offered = True
        announce(offer)
        # watch the step; a gate is the last step before half of the devices
        is_gate = share < 0.5 and bool(steps) and steps[0] >= 0.5
        reason = watch.watch_step(offer, is_gate=is_gate)
        if watch.has_evidence and reason is None:
            if is_gate and watch.pending and share < _COMPARISON_SHARE:
                steps.appendleft(_COMPARISON_SHARE)
            elif is_gate and watch.pending and not limits.accept_undecided:
                reasons = limits.not_compared(watch.latest)
                cause = "; ".join(f"{name}: {reasons[name]}" for name in sorted(watch.pending))
                return RolloutEnd(offer, watch.latest, cause, "undecided")
            continue
        # withdraw the release
        offer = repository.rollback(release)
        announce(offer)
        if reason is not None:
            return RolloutEnd(offer, watch.latest, reason, "withdrawn")
        n_running = len(watch.latest.running)
        cause = f"no evidence in {watch.n_looks} looks: {n_running} devices run it"
        return RolloutEnd(offer, watch.latest, cause, "no-evidence")
    return RolloutEnd(offer, watch.latest)


def planned_shares(shares: Sequence[float], limits: AbortLimits) -> list[float]:
    """Check the shares of a rollout, and add the shares that a comparison needs.

    With a comparison the first share is below one half, and a share of nine tenths comes before a
    last share of 1. Raises InputError if the shares do not rise within (0, 1].
    """
    plan = list(shares)
    if plan != sorted(set(plan)):
        raise InputError("the shares of a rollout must rise, such as 5%,25%,100%")
    for share in plan:
        check_rollout(share)
    if limits.worse_by is not None:
        if plan[0] >= 0.5:
            plan.insert(0, _COMPARISON_SHARE)
        if plan[-1] == 1.0 and plan[-2] < _HOLDOUT_SHARE:
            plan.insert(-1, _HOLDOUT_SHARE)
    return plan


class _RolloutWatch:
    """Observer of the steps of a rollout.

    `latest` is the last report, and `has_evidence` says whether enough devices run the release.
    `pending` are the figures whose comparison has not ended, and `n_looks` is the number of looks
    at the step.
    """

    def __init__(
        self,
        limits: AbortLimits,
        *,
        report: Callable[[OfferedRelease], RolloutReport],
        wait: Callable[[], None],
        progress: Callable[[OfferedRelease, RolloutReport], None],
        latest: RolloutReport,
    ) -> None:
        self._limits = limits
        self._report = report
        self._wait = wait
        self._progress = progress
        self._online_devices = latest.running | latest.elsewhere
        self._runners: Set[str] = frozenset()
        self.latest = latest
        self.has_evidence = False
        self.pending: Set[str] = frozenset()
        self.n_looks = 0

    def watch_step(self, offer: OfferedRelease, *, is_gate: bool) -> str | None:
        """Look at a step until it ends; return the reason to withdraw the release, or None."""
        histories: dict[str, list[float]] = {figure: [] for figure in FIGURES}
        # look longer at the last gate, because an undecided comparison ends the rollout there
        is_last_gate = is_gate and offer.rollout >= _COMPARISON_SHARE * WHOLE
        min_looks = _EARLY_LOOKS if is_last_gate else _MAX_LOOKS_WITHOUT_EVIDENCE
        self.n_looks = 0
        n_without_evidence = 0
        while n_without_evidence < _MAX_LOOKS_WITHOUT_EVIDENCE:
            # read a report, and check the limits
            self._wait()
            self.n_looks += 1
            self.latest = latest = self._report(offer)
            self._progress(offer, latest)
            n_silent = len(self._runners & latest.offline)
            reason = self._limits.reason_to_abort(latest, n_silent)
            self._runners |= latest.running
            self.has_evidence = latest.has_evidence(self._online_devices | self._runners)
            if reason is not None:
                return reason
            if not self.has_evidence:
                n_without_evidence += 1
                continue
            # continue while a comparison may still end
            shares = self._limits.progress(latest, is_gate=is_gate)
            self.pending = frozenset(shares)
            for figure, share in shares.items():
                histories[figure].append(share)
            if not any(_may_end(histories[figure], min_looks) for figure in shares):
                self._online_devices = latest.running | latest.elsewhere
                # devices that run the release but report no figures give no evidence
                lacks_figures = len(latest.running) >= MIN_DEVICES and 0.0 in shares.values()
                self.has_evidence = not lacks_figures
                return None
        return None


def _may_end(shares: Sequence[float], min_looks: int) -> bool:
    """Whether a comparison may still end, given its share of the needed information at each look.

    If devices differ, the information stops growing although they give more answers.
    """
    n_looks = len(shares)
    is_early = n_looks < _EARLY_LOOKS
    if n_looks < min_looks or (is_early and not shares[-1]):
        return True
    # growth per look = (mean of the later half - mean of the earlier half) / looks in a half
    half = n_looks // 2
    growth = (fmean(shares[-half:]) - fmean(shares[:half])) / half
    expected_looks = _MAX_EXPECTED_LOOKS * (_EARLY_FACTOR if is_early else 1)
    return 1.0 - shares[-1] <= growth * expected_looks and n_looks < _MAX_COMPARISON_LOOKS


def _increase_share(
    repository: Repository, offer: OfferedRelease, share: float, *, is_offered: bool
) -> OfferedRelease | None:
    """Offer a release to a larger share; return None if another change has replaced it."""
    while not is_offered or repository.wanted(offer.model) == offer:
        try:
            return repository.publish(str(offer), share, expected_version=repository.version)
        except StaleVersionError:
            continue  # publish() has read the new metadata, so check it and try again
    return None


def announce(repository: Repository, offers: Iterable[OfferedRelease], endpoint: Endpoint) -> None:
    """Announce updates to the devices that run the models of these offers."""
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())
