"""Roll a release out in steps, and withdraw it when devices report failures.

The next step follows on evidence: enough of the devices that the release is offered to run it, and
it exceeds no limit. A silent device gives no evidence, unless it ran the release before, which
counts as a failure. With a limit on a comparison (:mod:`.comparison`) the release goes to half of
the devices only once there is enough information to find an excess. If the information stops
growing before, the rollout ends undecided. A tenth of the devices keeps other versions until the
last step, for the comparison.

Devices are not trusted, and each counts for no more than its share of the fleet. A device that
reports wrong figures can cause a withdrawal, but cannot keep a bad release in service.
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

#: Looks without evidence at a step, after which the rollout ends.
_MAX_LOOKS: Final = 10
#: Looks after which a comparison is expected to end, or is given up; the number of looks in which
#: it must be expected to end, and the factor of that number while there were few looks.
_FIRST_LOOKS: Final = 30
_MAX_EXPECTED_LOOKS: Final = 400
_EARLY_FACTOR: Final = 10
#: Largest number of looks at a comparison.
_MAX_COMPARING_LOOKS: Final = 200
#: Largest share of the devices before the end of a comparison, and before the last step.
_COMPARING_SHARE: Final = 0.45
_HOLDING_SHARE: Final = 0.9
#: Smallest number of failures for which a release is withdrawn.
_MIN_FAILURES: Final = 3


def read_share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a share: give one as 10% or 0.1") from None


_Limit = Annotated[float, Meta(ge=0, lt=1)]


class AbortLimits(Settings, frozen=True):
    """Limits beyond which a release is withdrawn.

    `failed` limits the share of failures among the devices that ran the release: those where it
    failed its trial, and those that fell silent. Fewer than three failures exceed no limit.
    `worse_by` limits how much larger the share of errors, fallbacks or disagreement may be than
    with other versions. A figure is compared once three devices with the release and three others
    report it; a release that keeps the limit is withdrawn with probability :data:`.ALPHA` at most.
    An undecided comparison stops the rollout below half of the devices, unless `accept_undecided`.
    """

    failed: Annotated[
        _Limit | None,
        typer.Option(
            "--above",
            parser=read_share,
            metavar="SHARE",
            help="Largest share of failures among devices that ran the release: 5%.",
        ),
    ] = None
    worse_by: Annotated[
        _Limit | None,
        typer.Option(
            parser=read_share,
            metavar="SHARE",
            help="Largest excess over other versions of its share of errors, of fallbacks, or "
            "of answers unlike the high-cost model's (devices with --audit): 1%.",
        ),
    ] = None
    accept_undecided: Annotated[
        bool,
        typer.Option(
            "--accept-undecided",
            help="Continue where --worse-by cannot be decided because devices differ too much.",
        ),
    ] = False

    def __bool__(self) -> bool:
        return self.failed is not None or self.worse_by is not None

    def not_compared(self, report: RolloutReport) -> dict[str, str]:
        """Reasons why comparisons have not ended, by figure; empty without `worse_by`."""
        if self.worse_by is None:
            return {}
        reasons = {}
        for figure, (word, _) in FIGURES.items():
            own, other = report.comparison(figure)
            if min(own.n_devices, other.n_devices) < MIN_DEVICES:
                reasons[figure] = (
                    f"{own.n_devices} devices with the release and {other.n_devices} with other "
                    f"versions report it, {MIN_DEVICES} of each are needed"
                    + (" (gatewise edge --audit)" if word == "audited" else "")
                )
        for figure, part in self.progress(report, is_gate=True).items():
            if figure not in reasons:
                reasons[figure] = (
                    f"devices differ too much, or answered too little, to find {100 * EFFECT:.0f} "
                    f"points above the limit: {part:.0%} of the information is there"
                )
        return reasons

    def answers_to_find(self, baseline: RolloutReport) -> dict[str, float]:
        """Estimate the answers that find EFFECT above `worse_by`, by figure."""
        if self.worse_by is None:
            return {}
        counts = {figure: baseline.others.get(figure, []) for figure in FIGURES}
        return {
            figure: answers_to_find(devices)
            for figure, devices in counts.items()
            if len(devices) >= MIN_DEVICES
        }

    def progress(self, report: RolloutReport, *, is_gate: bool) -> dict[str, float]:
        """Information of each comparison that has not ended, as a part of what it needs.

        At a gate a comparison ends once it can find EFFECT; before, once the standard error is
        below EFFECT or the limit. Without devices with other versions there is no comparison.
        """
        parts: dict[str, float] = {}
        if self.worse_by is None or (len(report.running) < MIN_DEVICES and not is_gate):
            return parts
        for figure in FIGURES:
            comparison = report.comparison(figure)
            if comparison.other.n_devices < MIN_DEVICES:
                continue
            if comparison.own.n_devices < MIN_DEVICES:
                parts[figure] = 0.0
            elif is_gate:
                parts[figure] = comparison.power
            else:
                parts[figure] = (max(self.worse_by, EFFECT) / comparison.error) ** 2
        return {figure: part for figure, part in parts.items() if part < 1.0}

    def reason_to_abort(self, report: RolloutReport, silent: int = 0) -> str | None:
        """Get the reason to withdraw a release, or None; `silent` devices ran it and are away."""
        n_failures = len(report.refused) + silent
        n_ran = len(report.running) + n_failures
        limit = math.inf if self.failed is None else self.failed * n_ran
        if n_failures >= _MIN_FAILURES and n_failures > limit:
            fell = f", {silent} of which fell silent" if silent else ""
            return f"it failed on {n_failures} of {n_ran} devices{fell}"
        if self.worse_by is not None:
            for figure in FIGURES:
                comparison = report.comparison(figure)
                if comparison.evidence(self.worse_by) >= len(FIGURES) / ALPHA:
                    return (
                        f"{figure} {100 * comparison.own.share:.1f} %, "
                        f"{100 * comparison.excess:.1f} points more than with other versions "
                        f"(standard error {100 * comparison.error:.2f})"
                    )
        return None


class RolloutEnd(NamedTuple):
    """Outcome of a rollout.

    Attributes
    ----------
    offer : OfferedRelease
        The release as it is offered now.
    report : RolloutReport
        The last report.
    aborted : str or None
        Reason why the release did not reach its last share.
    kind : str
        ``done``: it reached its last share. ``withdrawn``: it exceeded a limit. ``no-evidence``: it
        was withdrawn without evidence. ``superseded``: another change of the repository replaced
        it. ``undecided``: a comparison did not end, and the release stays at its share.
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
    """Offer a release to growing shares of the devices; withdraw it once it exceeds a limit.

    At each look at a step `wait` waits for devices to update and answer, and `report` reads their
    statuses. A step ends with evidence; after ten looks without it the release is withdrawn. A
    comparison that is not expected to end stops the rollout below half of the devices, unless
    `limits` accept that. :func:`planned_shares` adds the steps that comparisons need.

    Devices that are online in `baseline`, the report before the first step, are expected to stay.
    An interrupted rollout continues from its step when it is called again.

    Raises InputError, before the first step, if the shares do not rise from above 0 to 1, or the
    repository has no such release.
    """
    # an interrupted rollout continues from its share
    plan = planned_shares(shares, limits)
    offer = repository.find(release)
    is_offered = repository.wanted(offer.model) == offer
    reached = offer.rollout / WHOLE if is_offered else 0.0
    latest = baseline or RolloutReport()
    watch = _RolloutWatch(limits, report=report, wait=wait, progress=progress, latest=latest)
    steps = deque([share for share in plan if share >= reached] or plan[-1:])
    while steps:
        share = steps.popleft()
        larger = _offer_more(repository, offer, share, is_offered=is_offered)
        if larger is None:
            why = f"{repository.wanted(offer.model) or 'nothing'} is offered in its place"
            return RolloutEnd(repository.find(release), watch.latest, why, "superseded")
        offer = larger
        is_offered = True
        announce(offer)
        is_gate = share < 0.5 and bool(steps) and steps[0] >= 0.5
        reason = watch.watch_step(offer, is_gate=is_gate)
        if watch.has_evidence and reason is None:
            if is_gate and watch.pending and share < _COMPARING_SHARE:
                steps.appendleft(_COMPARING_SHARE)
            elif is_gate and watch.pending and not limits.accept_undecided:
                reasons = limits.not_compared(watch.latest)
                why = "; ".join(f"{figure}: {reasons[figure]}" for figure in sorted(watch.pending))
                return RolloutEnd(offer, watch.latest, why, "undecided")
            continue
        offer = repository.rollback(release)
        announce(offer)
        if reason is not None:
            return RolloutEnd(offer, watch.latest, reason, "withdrawn")
        n_running = len(watch.latest.running)
        why = f"no evidence in {watch.n_looks} looks: {n_running} devices run it"
        return RolloutEnd(offer, watch.latest, why, "no-evidence")
    return RolloutEnd(offer, watch.latest)


def planned_shares(shares: Sequence[float], limits: AbortLimits) -> list[float]:
    """Check the shares of a rollout, and add those that a comparison needs.

    With a comparison the first share is below half, and a share of nine tenths comes before the
    last. Raises InputError if the shares do not rise from above 0 to 1.
    """
    plan = list(shares)
    if plan != sorted(set(plan)):
        raise InputError("the shares of a rollout must rise, as 5%,25%,100%")
    for share in plan:
        check_rollout(share)
    if limits.worse_by is not None:
        if plan[0] >= 0.5:
            plan.insert(0, _COMPARING_SHARE)
        if plan[-1] == 1.0 and plan[-2] < _HOLDING_SHARE:
            plan.insert(-1, _HOLDING_SHARE)
    return plan


class _RolloutWatch:
    """Looks at the steps of a rollout.

    `latest` is the last report, `has_evidence` whether enough devices run the release, `pending`
    the figures with a comparison that did not end, and `n_looks` the number of looks at the step.
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
        self._present = latest.running | latest.elsewhere
        self._runners: Set[str] = frozenset()
        self.latest = latest
        self.has_evidence = False
        self.pending: Set[str] = frozenset()
        self.n_looks = 0

    def watch_step(self, offer: OfferedRelease, *, is_gate: bool) -> str | None:
        """Look at a step until it has evidence or ends; return the reason to withdraw, or None."""
        histories: dict[str, list[float]] = {figure: [] for figure in FIGURES}
        # at the last gate the rollout ends if the comparison does not
        is_last_gate = is_gate and offer.rollout >= _COMPARING_SHARE * WHOLE
        min_looks = _FIRST_LOOKS if is_last_gate else _MAX_LOOKS
        self.n_looks = 0
        n_without_evidence = 0
        while n_without_evidence < _MAX_LOOKS:
            self._wait()
            self.n_looks += 1
            self.latest = latest = self._report(offer)
            self._progress(offer, latest)
            n_silent = len(self._runners & latest.offline)
            reason = self._limits.reason_to_abort(latest, n_silent)
            self._runners |= latest.running
            self.has_evidence = latest.has_evidence(self._present | self._runners)
            if reason is not None:
                return reason
            if not self.has_evidence:
                n_without_evidence += 1
                continue
            parts = self._limits.progress(latest, is_gate=is_gate)
            self.pending = frozenset(parts)
            for figure, part in parts.items():
                histories[figure].append(part)
            if not any(_may_end(histories[figure], min_looks) for figure in parts):
                self._present = latest.running | latest.elsewhere
                # devices that run it and report nothing give no evidence
                is_silent = len(latest.running) >= MIN_DEVICES and 0.0 in parts.values()
                self.has_evidence = not is_silent
                return None
        return None


def _may_end(parts: Sequence[float], min_looks: int) -> bool:
    """Whether a comparison may still end, from the part of its information at each look.

    If devices differ, the information stops growing with their answers. Its growth per look is the
    difference of the means of the later and the earlier half of the looks, over half of them.
    """
    n_looks = len(parts)
    is_early = n_looks < _FIRST_LOOKS
    if n_looks < min_looks or (is_early and not parts[-1]):
        return True
    half = n_looks // 2
    growth = (fmean(parts[-half:]) - fmean(parts[:half])) / half
    expected_looks = _MAX_EXPECTED_LOOKS * (_EARLY_FACTOR if is_early else 1)
    return 1.0 - parts[-1] <= growth * expected_looks and n_looks < _MAX_COMPARING_LOOKS


def _offer_more(
    repository: Repository, offer: OfferedRelease, share: float, *, is_offered: bool
) -> OfferedRelease | None:
    """Offer a release to a larger share; None if another change has replaced it."""
    while not is_offered or repository.wanted(offer.model) == offer:
        try:
            return repository.publish(str(offer), share, expected_version=repository.version)
        except StaleVersionError:
            continue  # with the metadata that publish has read
    return None


def announce(repository: Repository, offers: Iterable[OfferedRelease], endpoint: Endpoint) -> None:
    """Publish that there are updates, to the devices of the offers' models."""
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())
