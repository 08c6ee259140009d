"""Announce releases to devices, read what they report, roll out in steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gatewise.console import note
from gatewise.errors import InputError
from gatewise.formats import percent

if TYPE_CHECKING:
    from gatewise_cloud.broker.rollout import RolloutEnd
    from gatewise_cloud.broker.rollout_reports import AbortLimits, RolloutReport
    from gatewise_edge.link.broker_url import Endpoint
    from gatewise_export.repository.release import OfferedRelease
    from gatewise_export.repository.repository import Repository

REPORTED_SHARES: Final = ("errors", "fallbacks", "disagreement")


def roll_out_in_steps(
    repository: Repository,
    release: str,
    shares: str,
    every: float,
    limits: AbortLimits,
    endpoint: Endpoint,
) -> RolloutEnd:
    """Offer a release to one share of the devices after the other, until a limit is passed."""
    from gatewise_cloud.broker.rollout import roll_out

    def progress(offer: OfferedRelease, report: RolloutReport) -> None:
        note(f"{offer} at {rollout_percent(offer)}: {report_in_words(report)}")

    return roll_out(
        repository,
        release,
        [read_share(share.strip()) for share in shares.split(",")],
        limits,
        announce=lambda offer: announce(repository, [offer], endpoint),
        report=lambda offer: reports_of([offer], endpoint)[offer],
        wait=lambda: time.sleep(every),
        progress=progress,
    )


def abort_limits(above: str | None, worse_by: str | None) -> AbortLimits:
    """Read the limits that end a rollout."""
    from gatewise_cloud.broker.rollout_reports import AbortLimits

    return AbortLimits(*(None if text is None else read_share(text) for text in (above, worse_by)))


def announce(
    repository: Repository, offers: list[OfferedRelease], endpoint: Endpoint | None
) -> None:
    """Announce to the devices of the offers' models that there is news."""
    if endpoint is None:
        return
    from gatewise_cloud.broker.mqtt_client import publish_retained
    from gatewise_edge.link.topics import manifest_topic

    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())


def reports_of(
    offers: list[OfferedRelease], endpoint: Endpoint
) -> dict[OfferedRelease, RolloutReport]:
    """Read what devices report of each release."""
    from gatewise_cloud.broker.rollout_reports import RolloutReport, read_statuses

    statuses = read_statuses(endpoint)
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def endpoint_of(
    broker: str | None, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> Endpoint | None:
    """Make the endpoint of a broker, if one is given."""
    if broker is None:
        if ca_file or cert_file or key_file:
            raise InputError("--ca-file, --cert-file and --key-file are for --broker")
        return None
    from gatewise_edge.link.broker_url import Endpoint

    return Endpoint(broker, ca_file=ca_file, cert_file=cert_file, key_file=key_file)


def report_cells(report: RolloutReport | None) -> tuple[object, ...]:
    """Lay out as cells of a table what is reported; none without reports."""
    if report is None:
        return ()
    shares = (percent(report.share(what)[0]) for what in REPORTED_SHARES)
    return (report.running, report.refused, *shares)


def report_in_words(report: RolloutReport) -> str:
    """Write what devices report in words."""
    shares = ", ".join(f"{what} {percent(report.share(what)[0])}" for what in REPORTED_SHARES)
    return f"{report.running} run it, on {report.refused} it failed; {shares}"


def read_share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is no share: give one as 10% or 0.1") from None


def rollout_percent(offer: OfferedRelease) -> str:
    """Share of the devices that a release is offered to."""
    return f"{offer.rollout / 100:g}%"
