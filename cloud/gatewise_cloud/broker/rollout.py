"""Roll a release out in steps, and withdraw it when devices report that it does badly.

A device's status names the version that it runs; once a release has failed there, the beginning
of the digest of the last one; and how the version does:
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2``
(instances, errors, fallbacks; the instances that its audits stand for, and about how many of them
the high-cost model would have answered differently). Only devices with ``--audit`` report audits.

A step is followed by the next only on evidence: enough of the devices that the release is offered
to run it, and it passes no limit. A silent device gives no evidence; one that ran the release and
fell silent counts as a failure.

A device is not trusted: each counts as one of the fleet, for no more than its share. One that lies
can have a release withdrawn, but cannot keep a bad one in service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple, Self

import paho.mqtt.client as paho
import typer
from msgspec import Meta

from gatewise.errors import InputError
from gatewise.settings import Settings
from gatewise_cloud.broker.mqtt_client import publish_retained, refused, run_until, subscribed
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import STATUSES, manifest_topic
from gatewise_export.repository.release import WHOLE, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository, StaleVersionError

#: Looks at a step after which it ends without evidence.
_MAX_LOOKS: Final = 10
#: Seconds without a further status after which all have been read.
_QUIET_SECONDS: Final = 1.0
#: Failures that a release needs to be withdrawn; fewer may be an accident.
_MIN_FAILURES: Final = 3
#: Devices that give evidence, or all where the release is offered to fewer, and their share.
_MIN_DEVICES: Final = 3
_RUNNING_SHARE: Final = 0.5
#: Standard errors that a difference must exceed. More than 1.96, because a rollout looks again and
#: again: of 100 equal releases, each looked at 20 times, at most one is withdrawn.
_STANDARD_ERRORS: Final = 3.3
#: Instances of one device that count, as a multiple of the median of all devices.
_MAX_WEIGHT: Final = 4.0
#: Word of a status that holds a figure, and the position of the figure in it.
FIGURES: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}

#: Cases on one device, and the instances among which they were counted.
_Counts = tuple[float, float]


@dataclass(frozen=True)
class RolloutReport:
    """State of a release on a fleet, as devices report it; devices stand as ids.

    `running` devices run the release; `refused` ones left it because it failed there; `elsewhere`
    ones run another version of the model; `offline` ones are away; it is `offered` to those.
    `figures` has the counts of ``errors``, ``fallbacks`` and ``disagreement`` with the high-cost
    model on each device that runs it, `others` on each that runs another version.
    """

    running: Set[str] = frozenset()
    refused: Set[str] = frozenset()
    elsewhere: Set[str] = frozenset()
    offline: Set[str] = frozenset()
    offered: Set[str] = frozenset()
    figures: Mapping[str, list[_Counts]] = field(default_factory=dict)
    others: Mapping[str, list[_Counts]] = field(default_factory=dict)

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
        """Whether enough of the devices that the release is offered to run it.

        `present` devices were online before the offer; if they are away now, they are still
        expected to run it.
        """
        missing = self.offline & present
        expected = self.running | (self.offered & (self.elsewhere | missing))
        if not expected:  # the offer reaches none of the devices that are online
            return bool(present or (self.elsewhere and not self.offline & self.offered))
        needed = max(min(_MIN_DEVICES, len(expected)), _RUNNING_SHARE * len(expected))
        return len(self.running) >= needed

    def share(self, figure: str) -> tuple[float, float]:
        """Share of the instances with errors, fallbacks or disagreement, and its standard error."""
        return _share(self.figures.get(figure, []))

    def excess(self, figure: str) -> tuple[float, float]:
        """Share of `figure` less that of the other versions, and the standard error of that."""
        share, error = self.share(figure)
        other_share, other_error = _share(self.others.get(figure, []))
        return share - other_share, math.hypot(error, other_error)

    def n_reporting(self, figure: str) -> tuple[int, int]:
        """Devices that report `figure`: with this release, and with another version."""
        return len(self.figures.get(figure, ())), len(self.others.get(figure, ()))

    def to_dict(self) -> dict[str, float | int | None]:
        """Counts and shares; a share without reports is None."""
        shares = {figure: self.share(figure)[0] for figure in FIGURES}
        return {"running": len(self.running), "refused": len(self.refused)} | {
            figure: None if math.isnan(share) else share for figure, share in shares.items()
        }


def read_share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a share: give one as 10% or 0.1") from None


_Limit = Annotated[float, Meta(ge=0, lt=1)]


class AbortLimits(Settings, frozen=True):
    """Limits beyond which a release is withdrawn.

    `failed` is a share of the devices that ran the release: it failed its trial there, or they
    fell silent with it. Fewer than three failures pass no limit. `worse_by` limits how much the
    share of errors, of fallbacks or of disagreement may exceed that of the other versions. A figure
    is compared once three devices of each report it, and the difference must be larger than chance
    explains. Raises InputError if a limit is not from 0 to 1.
    """

    failed: Annotated[
        _Limit | None,
        typer.Option(
            "--above",
            parser=read_share,
            metavar="SHARE",
            help="Largest share of devices that ran it, on which it failed, as 5%.",
        ),
    ] = None
    worse_by: Annotated[
        _Limit | None,
        typer.Option(
            parser=read_share,
            metavar="SHARE",
            help="Largest excess of its share of errors, fallbacks or disagreement with the "
            "high-cost model (from devices with --audit) over other versions, as 1%.",
        ),
    ] = None

    def __bool__(self) -> bool:
        return self.failed is not None or self.worse_by is not None

    def not_compared(self, report: RolloutReport) -> dict[str, str]:
        """Figures that `worse_by` has not compared, each with the reason; empty without it."""
        if self.worse_by is None:
            return {}
        reasons = {}
        for figure, (word, _) in FIGURES.items():
            n_own, n_other = report.n_reporting(figure)
            if min(n_own, n_other) < _MIN_DEVICES:
                reasons[figure] = (
                    f"{n_own} devices with the release and {n_other} with other versions report "
                    f"it, {_MIN_DEVICES} of each are needed"
                    + (" (gatewise edge --audit)" if word == "audited" else "")
                )
        return reasons

    def is_vague(self, report: RolloutReport) -> bool:
        """Whether a difference is known less exactly than `worse_by`, and passes no limit yet."""
        if not self.worse_by or self.reason_to_abort(report) is not None:
            return False
        for figure in FIGURES:
            error = report.excess(figure)[1]
            # Without reports of other versions there is nothing to wait for: not_compared says so.
            comparable = report.n_reporting(figure)[1] >= _MIN_DEVICES
            awaited = comparable and len(report.running) >= _MIN_DEVICES
            if error > self.worse_by or (math.isnan(error) and awaited):
                return True
        return False

    def reason_to_abort(self, report: RolloutReport, silent: int = 0) -> str | None:
        """Name the limit that a release has passed, or return None.

        `silent` devices ran it and are away.
        """
        n_failures = len(report.refused) + silent
        n_ran = len(report.running) + n_failures
        limit = math.inf if self.failed is None else self.failed * n_ran
        if n_failures >= _MIN_FAILURES and n_failures > limit:
            fell = f", {silent} of which fell silent" if silent else ""
            return f"it failed on {n_failures} of {n_ran} devices{fell}"
        if self.worse_by is not None:
            for figure in FIGURES:
                excess, error = report.excess(figure)
                if excess - _STANDARD_ERRORS * error > self.worse_by:
                    return (
                        f"{figure} {100 * report.share(figure)[0]:.1f} %, {100 * excess:.1f} "
                        "points more than with other versions (standard error "
                        f"{100 * error:.2f})"
                    )
        return None


class RolloutEnd(NamedTuple):
    """Outcome of a rollout.

    `offer` is the release as it is offered now, `report` the last one. `kind` says whether the
    release reached its last share, was withdrawn for a limit or for want of evidence, or another
    change of the repository took its place; `aborted` is the reason, if it did not reach it.
    """

    offer: OfferedRelease
    report: RolloutReport
    aborted: str | None = None
    kind: Literal["done", "withdrawn", "no-evidence", "superseded"] = "done"


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
    """Offer a release to growing shares of the devices; withdraw it once it passes a limit.

    In each step `wait` passes the time in which devices take the release and answer, then
    `report` reads their statuses. The step is looked at again, up to ten times, until there is
    evidence; without evidence the release is withdrawn. Devices that were online in `baseline`, a
    report of before the first step, are expected to stay. An interrupted run leaves the release at
    its step; the next run goes on from there. The rollout ends where another change of the
    repository has replaced the offer.

    Raises InputError, before the first step, if the shares do not rise from above 0 to 1, or the
    repository has no such release.
    """
    if list(shares) != sorted(set(shares)):
        raise InputError("the shares of a rollout must rise, as 5%,25%,100%")
    for share in shares:
        check_rollout(share)
    offer = repository.find(release)
    is_offered = repository.wanted(offer.model) == offer
    reached = offer.rollout / WHOLE if is_offered else 0.0
    latest = baseline or RolloutReport()
    present = latest.running | latest.elsewhere
    runners: Set[str] = frozenset()
    for share in [s for s in shares if s >= reached] or [shares[-1]]:
        larger = _offer_more(repository, offer, share, is_offered=is_offered)
        if larger is None:
            why = f"{repository.wanted(offer.model) or 'nothing'} is offered in its place"
            return RolloutEnd(repository.find(release), latest, why, "superseded")
        offer = larger
        is_offered = True
        announce(offer)
        for _ in range(_MAX_LOOKS):
            wait()
            latest = report(offer)
            progress(offer, latest)
            reason = limits.reason_to_abort(latest, len(runners & latest.offline))
            runners |= latest.running
            has_evidence = latest.has_evidence(present | runners) and not limits.is_vague(latest)
            if has_evidence or reason is not None:
                break
        if reason is None and has_evidence:
            present = latest.running | latest.elsewhere
            continue
        offer = repository.rollback(release)
        announce(offer)
        if reason is not None:
            return RolloutEnd(offer, latest, reason, "withdrawn")
        why = f"no evidence in {_MAX_LOOKS} looks: {len(latest.running)} devices run it"
        return RolloutEnd(offer, latest, why, "no-evidence")
    return RolloutEnd(offer, latest)


def _offer_more(
    repository: Repository, offer: OfferedRelease, share: float, *, is_offered: bool
) -> OfferedRelease | None:
    """Offer a release to a larger share; None if another change has taken its place."""
    while not is_offered or repository.wanted(offer.model) == offer:
        try:
            return repository.publish(str(offer), share, expected_version=repository.version)
        except StaleVersionError:
            continue  # the repository has read its metadata again
    return None


def read_statuses(endpoint: Endpoint, *, timeout: float = 10.0) -> dict[str, str]:
    """Read every device's retained status, by topic.

    Raises LinkError if the broker cannot be reached, or does not grant the subscription.
    """
    statuses: dict[str, str] = {}
    last_arrival = math.inf

    def add_status(message: paho.MQTTMessage) -> None:
        nonlocal last_arrival
        # Only a topic's first message: a device that repeats its status must not keep us waiting.
        if message.topic not in statuses:
            last_arrival = time.monotonic()
        statuses[message.topic] = message.payload.decode("utf-8", "replace")

    with subscribed(endpoint, STATUSES, take=add_status, timeout=timeout) as (client, granted):
        if not granted:
            raise refused(endpoint, f"it does not grant {STATUSES}")
        last_arrival = time.monotonic()
        run_until(client, lambda: time.monotonic() - last_arrival > _QUIET_SECONDS, math.inf)
        return statuses


def announce(repository: Repository, offers: Iterable[OfferedRelease], endpoint: Endpoint) -> None:
    """Announce to the devices of the offers' models that there is news."""
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())


def read_reports(
    offers: Iterable[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read the devices' reports of each release."""
    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def _figures(statuses: Iterable[list[str]]) -> dict[str, list[_Counts]]:
    """Read the figures of devices; words that hold no valid figure are left out."""
    figures: dict[str, list[_Counts]] = {figure: [] for figure in FIGURES}
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


def _share(devices: list[_Counts]) -> tuple[float, float]:
    """Share of cases and its standard error between devices; NaN of too few devices."""
    m = len(devices)
    if m < _MIN_DEVICES:
        return math.nan, math.nan
    cap = _MAX_WEIGHT * sorted(n for _, n in devices)[m // 2]
    scaled = [(cases * min(1.0, cap / n), min(n, cap)) for cases, n in devices]
    # Ratio estimator: share = sum c / sum n, with the variance
    # m / (m - 1) * sum (c - share * n)^2 / (sum n)^2.
    total = sum(n for _, n in scaled)
    share = sum(cases for cases, _ in scaled) / total
    spread = sum((cases - share * n) ** 2 for cases, n in scaled)
    # Where no two devices differ, the error is that of one case more.
    error = math.sqrt(max(spread * m / (m - 1), 1.0)) / total
    return share, error
