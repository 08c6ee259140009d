"""Roll a release out in steps, and withdraw it when devices report that it does badly.

A device's status names the version that it runs; once a release has failed there, the beginning
of the digest of the last one; and how the version does:
``online digits/7 refused 66b4bcb045f3 seen=5120,3,40 audited=4900,51.2``
(instances, errors, fallbacks; audited instances, and about how many of them were answered
otherwise than by the high-cost model).

A device is not trusted: each counts as one of the fleet, for no more than its share. One that lies
can have a release withdrawn, never kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import paho.mqtt.client as paho

from gatewise.errors import InputError
from gatewise_cloud.broker.mqtt_client import publish_retained, refused, run_until, subscribed
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import STATUSES, manifest_topic
from gatewise_export.repository.release import WHOLE, OfferedRelease, check_rollout
from gatewise_export.repository.repository import Repository

#: Times that a step waits while figures are vague.
_LONGEST_STEP: Final = 10


#: Seconds without a further status after which there are no more.
_QUIET_SECONDS: Final = 1.0
#: Reports of a failure that are no accident.
_FEWEST_REFUSED: Final = 3
#: Devices from which on figures are compared, and the standard errors of what is no accident,
#: though one looks again and again.
_FEWEST_DEVICES: Final = 3
_STANDARD_ERRORS: Final = 3.3

#: Of one device: cases, and instances among which they were counted.
_Counts = tuple[float, float]


@dataclass(frozen=True)
class RolloutReport:
    """Devices that run a release, those that left it because it failed there, and how it does.

    `running`, `refused`: devices. `figures`: for ``errors``, ``fallbacks`` and ``disagreement``
    with the high-cost model, by device: how many, and among how many instances. `others`: the same
    of the devices that run another version of the model. `offered`: how many devices should come to
    run it.
    """

    running: int
    refused: int
    figures: dict[str, list[_Counts]] = field(default_factory=dict)
    others: dict[str, list[_Counts]] = field(default_factory=dict)
    offered: float = 0.0

    @classmethod
    def from_statuses(cls, statuses: Mapping[str, str], offer: OfferedRelease) -> Self:
        """Count the statuses of a fleet, by topic."""
        online = [words[1:] for s in statuses.values() if (words := s.split())[:1] == ["online"]]
        left = f"refused {offer.digest[:12]}".split()
        own = [words for words in online if words[:1] == [str(offer)]]
        others = [w for w in online if w not in own and w and w[0].startswith(f"{offer.model}/")]
        return cls(
            running=len(own),
            refused=sum(words[1:3] == left for words in online),
            figures=_figures(own),
            others=_figures(others),
            offered=offer.rollout / WHOLE * (len(own) + len(others)),
        )

    @property
    def failed(self) -> float:
        """Share of the devices that have run it which refused it."""
        return self.refused / max(1, self.running + self.refused)

    def share(self, what: str) -> tuple[float, float]:
        """Share of the instances with errors, fallbacks or disagreement, and its standard error."""
        return _share(self.figures.get(what, []))

    def worse_by(self, what: str) -> tuple[float, float]:
        """How much larger a share is than on the devices with another version; standard error."""
        (here, error), (there, other) = self.share(what), _share(self.others.get(what, []))
        return here - there, math.hypot(error, other)

    def to_dict(self) -> dict[str, float | int | None]:
        """Counts and shares; a share without reports is None."""
        shares = {what: self.share(what)[0] for what in FIGURES}
        return {"running": self.running, "refused": self.refused} | {
            what: None if math.isnan(share) else share for what, share in shares.items()
        }


@dataclass(frozen=True)
class AbortLimits:
    """When a release is withdrawn.

    `failed`: share of the devices that ran it, on which it failed its trial; three at least.
    `worse_by`: what its share of errors, of fallbacks or of answers other than the high-cost
    model's may exceed that of the other versions by; three devices of each must report, and the
    difference must be no accident. Raises InputError if a limit is no share.
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
        for what in FIGURES:
            error = report.worse_by(what)[1]
            # What the others report is still to come; what they do not will never be known. Slow
            # devices are waited for, too: a release that nobody runs yet has shown nothing.
            enough = max(report.running, report.offered) >= _FEWEST_DEVICES
            awaited = enough and len(report.others.get(what, ())) >= _FEWEST_DEVICES
            if error > self.worse_by or (math.isnan(error) and awaited):
                return True
        return False

    def reason_to_abort(self, report: RolloutReport) -> str | None:
        """Say which limit a release has passed, or return None."""
        if (
            self.failed is not None
            and report.refused >= _FEWEST_REFUSED
            and report.failed > self.failed
        ):
            return f"it failed on {report.refused} of {report.running + report.refused} devices"
        if self.worse_by is not None:
            for what in FIGURES:
                more, error = report.worse_by(what)
                if more - _STANDARD_ERRORS * error > self.worse_by:
                    return (
                        f"{what} {100 * report.share(what)[0]:.1f} %, {100 * more:.1f} points more "
                        f"than with other versions (standard error {100 * error:.2f})"
                    )
        return None


#: Which word of a status holds a figure, and where in it.
FIGURES: Final = {"errors": ("seen", 1), "fallbacks": ("seen", 2), "disagreement": ("audited", 1)}


def _figures(statuses: Iterable[list[str]]) -> dict[str, list[_Counts]]:
    """Read the figures of devices; what is no such figure is left out."""
    found: dict[str, list[_Counts]] = {what: [] for what in FIGURES}
    for words in statuses:
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        for what, (name, place) in FIGURES.items():
            try:
                numbers = [float(n) for n in pairs[name].split(",")]
                instances, cases = numbers[0], numbers[place]
            except (KeyError, ValueError, IndexError):
                continue
            if 1 <= instances < math.inf and 0 <= cases < math.inf:
                found[what].append((cases, instances))
    return found


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


def _grows(found: Sized) -> Callable[[], bool]:
    """Whether there are more than now."""
    count = len(found)
    return lambda: len(found) > count


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

    Raises InputError, before the first step, if the shares do not rise from above 0 to at most 1,
    or there is no such release.
    """
    if list(shares) != sorted(set(shares)):
        raise InputError("the shares of a rollout must rise, as 5%,25%,100%")
    for share in shares:
        check_rollout(share)
    wanted = repository.find(release)
    of_model = (o for o in repository.offers() if o.rollout and o.model == wanted.model)
    reached = wanted.rollout / WHOLE if wanted == next(of_model, None) else 0.0
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
