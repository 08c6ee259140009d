"""Roll a release out in steps, and withdraw it when devices report that it does badly.

A device's status names the version that it runs; once a release has failed there, the beginning
of the digest of the last one; and how the version does:
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2``
(instances, errors, fallbacks; audited instances, and about how many of them were answered
otherwise than by the high-cost model).

A step is followed by the next only on evidence: enough of the devices that the release is offered
to were seen running it, and no limit is passed. Silence is no evidence; a device that ran the
release and fell silent counts as one on which it failed.

A device is not trusted: each counts as one of the fleet, for no more than its share. One that lies
can have a release withdrawn, never kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Self

import paho.mqtt.client as paho

from gatewise.errors import InputError
from gatewise_cloud.broker.mqtt_client import publish_retained, refused, run_until, subscribed
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import STATUSES, manifest_topic
from gatewise_export.repository.release import WHOLE, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository, StaleVersionError

#: Looks at a step before it ends for want of evidence.
_MOST_LOOKS: Final = 10
#: Seconds without a further status after which there are no more.
_QUIET_SECONDS: Final = 1.0
#: Reports of a failure that are no accident.
_FEWEST_FAILURES: Final = 3
#: Devices that must run a release, if it is offered to so many, and their share of those.
_FEWEST_DEVICES: Final = 3
_RUNNING_SHARE: Final = 0.5
#: Standard errors of a difference that is no accident, though one looks again and again.
_STANDARD_ERRORS: Final = 3.3
#: Which word of a status holds a figure, and where in it.
FIGURES: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}

#: Of one device: cases, and instances among which they were counted.
_Counts = tuple[float, float]


@dataclass(frozen=True)
class RolloutReport:
    """How a release does, by what devices report.

    `running`: ids of devices that run it. `refused`: of those that left it because it failed there.
    `elsewhere`: of those that run another version of the model. `offline`: of those that are away.
    `offered`: of all those that it is offered to. `figures`: for ``errors``, ``fallbacks`` and
    ``disagreement`` with the high-cost model, by device that runs it: how many, and among how many
    instances. `others`: the same of the devices that run another version.
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
        own = {device: w[2:] for device, w in online.items() if w[1] == str(offer)}
        others = {
            device: w[2:]
            for device, w in online.items()
            if device not in own and w[1].startswith(f"{offer.model}/")
        }
        left = ["refused", offer.digest[:12]]
        return cls(
            running=frozenset(own),
            refused=frozenset(device for device, words in others.items() if words[:2] == left),
            elsewhere=frozenset(others),
            offline=frozenset(words_of.keys() - online.keys()),
            offered=frozenset(device for device in words_of if offer.is_for(device)),
            figures=_figures(own.values()),
            others=_figures(others.values()),
        )

    def has_evidence(self, present: Set[str]) -> bool:
        """Whether enough devices of those that the release is offered to run it.

        `present` devices were there before it was offered to them; those that are away now are
        expected to run it.
        """
        gone = self.offline & present
        expected = self.running | (self.offered & (self.elsewhere | gone))
        if not expected:  # an offer to none of the devices that are there
            return bool(present or (self.elsewhere and not self.offline & self.offered))
        needed = max(min(_FEWEST_DEVICES, len(expected)), _RUNNING_SHARE * len(expected))
        return len(self.running) >= needed

    def share(self, figure: str) -> tuple[float, float]:
        """Share of the instances with errors, fallbacks or disagreement, and its standard error."""
        return _share(self.figures.get(figure, []))

    def worse_by(self, figure: str) -> tuple[float, float]:
        """How much larger a share is than on the devices with another version; standard error."""
        own, error = self.share(figure)
        other, other_error = _share(self.others.get(figure, []))
        return own - other, math.hypot(error, other_error)

    def to_dict(self) -> dict[str, float | int | None]:
        """Counts and shares; a share without reports is None."""
        shares = {figure: self.share(figure)[0] for figure in FIGURES}
        return {"running": len(self.running), "refused": len(self.refused)} | {
            figure: None if math.isnan(share) else share for figure, share in shares.items()
        }


@dataclass(frozen=True)
class AbortLimits:
    """Limits beyond which a release is withdrawn.

    `failed`: share of the devices that ran it, on which it failed its trial or that fell silent
    with it; three at least. `worse_by`: what its share of errors, of fallbacks or of answers other
    than the high-cost model's may exceed that of the other versions by; three devices of each must
    report, and the difference must be no accident. Raises InputError if a limit is no share.
    """

    failed: float | None = None
    worse_by: float | None = None

    def __post_init__(self) -> None:
        for limit in (self.failed, self.worse_by):
            if limit is not None and not 0 <= limit < 1:
                raise InputError(f"a limit of {limit:g}; give a share from 0 to 1")

    def is_vague(self, report: RolloutReport) -> bool:
        """Whether a difference is known less exactly than `worse_by`, and passes no limit yet."""
        if not self.worse_by or self.reason_to_abort(report) is not None:
            return False
        for figure in FIGURES:
            error = report.worse_by(figure)[1]
            # What no other device reports will never be compared.
            comparable = len(report.others.get(figure, ())) >= _FEWEST_DEVICES
            awaited = comparable and len(report.running) >= _FEWEST_DEVICES
            if error > self.worse_by or (math.isnan(error) and awaited):
                return True
        return False

    def reason_to_abort(self, report: RolloutReport, silent: int = 0) -> str | None:
        """Name the limit that a release has passed, or return None.

        `silent` devices ran it and are away.
        """
        failures = len(report.refused) + silent
        ran = len(report.running) + failures
        most = max(_FEWEST_FAILURES - 1, (self.failed or 0.0) * ran)
        if self.failed is not None and failures > most:
            fell = f", {silent} of which fell silent" if silent else ""
            return f"it failed on {failures} of {ran} devices{fell}"
        if self.worse_by is not None:
            for figure in FIGURES:
                excess, error = report.worse_by(figure)
                if excess - _STANDARD_ERRORS * error > self.worse_by:
                    return (
                        f"{figure} {100 * report.share(figure)[0]:.1f} %, {100 * excess:.1f} "
                        "points more than with other versions (standard error "
                        f"{100 * error:.2f})"
                    )
        return None


class RolloutEnd(NamedTuple):
    """How a rollout ended: the release as it is offered now, the last report, why it stopped.

    `kind`: it reached its last share, was withdrawn for passing a limit or for want of evidence,
    or another change of the repository took its place.
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
    before: RolloutReport | None = None,
) -> RolloutEnd:
    """Offer a release to growing shares of the devices; withdraw it once it passes a limit.

    In each step, the last one too, `wait` passes the time in which devices take the release and
    answer, then `report` gives what they say of it; the step is looked at again, ten times at most,
    until there is evidence, and without it the release is withdrawn. `before` is a report of before
    the first step: devices that were there then are expected to stay. A run that is interrupted
    leaves the release at its step; run again, it goes on with the steps above. Where somebody else
    has changed what is offered meanwhile, it ends.

    Raises InputError, before the first step, if the shares do not rise from above 0 to at most 1,
    or there is no such release.
    """
    if list(shares) != sorted(set(shares)):
        raise InputError("the shares of a rollout must rise, as 5%,25%,100%")
    for share in shares:
        check_rollout(share)
    offer = repository.find(release)
    is_offered = repository.wanted(offer.model) == offer
    reached = offer.rollout / WHOLE if is_offered else 0.0
    present: Set[str] = frozenset() if before is None else before.running | before.elsewhere
    runners: Set[str] = frozenset()
    found = before or RolloutReport()
    for share in [s for s in shares if s >= reached] or [shares[-1]]:
        larger = _offer_more(repository, offer, share, is_offered=is_offered)
        if larger is None:
            why = f"{repository.wanted(offer.model) or 'nothing'} is offered in its place"
            return RolloutEnd(repository.find(release), found, why, "superseded")
        offer = larger
        is_offered = True
        announce(offer)
        for _ in range(_MOST_LOOKS):
            wait()
            found = report(offer)
            progress(offer, found)
            reason = limits.reason_to_abort(found, len(runners & found.offline))
            runners |= found.running
            has_evidence = found.has_evidence(present | runners) and not limits.is_vague(found)
            if has_evidence or reason is not None:
                break
        if reason is None and has_evidence:
            present = found.running | found.elsewhere
            continue
        offer = repository.rollback(release)
        announce(offer)
        if reason is not None:
            return RolloutEnd(offer, found, reason, "withdrawn")
        why = f"no evidence in {_MOST_LOOKS} looks: {len(found.running)} devices run it"
        return RolloutEnd(offer, found, why, "no-evidence")
    return RolloutEnd(offer, found)


def _offer_more(
    repository: Repository, offer: OfferedRelease, share: float, *, is_offered: bool
) -> OfferedRelease | None:
    """Offer a release to a larger share; None if another change has taken its place."""
    while not is_offered or repository.wanted(offer.model) == offer:
        try:
            return repository.publish(str(offer), share, expected_version=repository.version)
        except StaleVersionError:
            continue  # what is offered has been read again
    return None


def read_statuses(endpoint: Endpoint, *, timeout: float = 10.0) -> dict[str, str]:
    """Read every device's retained status, by topic.

    Raises LinkError if the broker cannot be reached, or does not grant it.
    """
    statuses: dict[str, str] = {}

    def take(message: paho.MQTTMessage) -> None:
        statuses[message.topic] = message.payload.decode("utf-8", "replace")

    with subscribed(endpoint, STATUSES, take=take, timeout=timeout) as (client, granted):
        if not granted:
            raise refused(endpoint, f"it does not grant {STATUSES}")
        while run_until(client, _grows(statuses), _QUIET_SECONDS):
            pass
        return statuses


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


def _figures(statuses: Iterable[list[str]]) -> dict[str, list[_Counts]]:
    """Read the figures of devices; what is no such figure is left out."""
    figures: dict[str, list[_Counts]] = {figure: [] for figure in FIGURES}
    for words in statuses:
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        for figure, (name, place) in FIGURES.items():
            try:
                numbers = [float(n) for n in pairs[name].split(",")]
                instances = numbers[0]
                cases = numbers[place]
            except (KeyError, ValueError, IndexError):
                continue
            if 1 <= instances < math.inf and 0 <= cases < math.inf:
                figures[figure].append((cases, instances))
    return figures


def _share(devices: list[_Counts]) -> tuple[float, float]:
    """Share of cases and its standard error between devices; NaN of too few devices.

    A device that reports many more instances than the others counts for no more than four times
    their median.
    """
    if len(devices) < _FEWEST_DEVICES:
        return math.nan, math.nan
    most = 4.0 * sorted(n for _, n in devices)[len(devices) // 2]
    scaled = [(cases * min(1.0, most / n), min(n, most)) for cases, n in devices]
    total = sum(n for _, n in scaled)
    share = sum(cases for cases, _ in scaled) / total
    spread = sum((cases - share * n) ** 2 for cases, n in scaled)
    m = len(scaled)
    # Where no two differ, as many again as one case more would make.
    error = math.sqrt(max(spread * m / (m - 1), 1.0)) / total
    return share, error


def _grows(collection: Sized) -> Callable[[], bool]:
    """Whether there are more than now."""
    count = len(collection)
    return lambda: len(collection) > count
