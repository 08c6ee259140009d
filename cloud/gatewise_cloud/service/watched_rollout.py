"""Rollout that ``gatewise repo publish --every`` watches on a terminal."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from gatewise.console import note
from gatewise.formats import percent, plural
from gatewise_cloud.broker.abort_limits import AbortLimits
from gatewise_cloud.broker.comparison import EFFECT
from gatewise_cloud.broker.rollout import RolloutEnd, announce, roll_out
from gatewise_cloud.broker.rollout_report import METRICS, RolloutReport, read_reports
from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease
from gatewise_export.repository.repository import Repository


class WatchedRollout(NamedTuple):
    """Rollout in steps that is withdrawn if the devices' reports exceed the limits."""

    repository: Repository
    endpoint: Endpoint
    limits: AbortLimits
    check_interval_s: float

    def run(self, release: str, shares: list[float]) -> tuple[RolloutEnd, dict[str, Any]]:
        """Roll a release out, and print its progress; return its end and its JSON document."""
        repository = self.repository
        baseline = self._read_report(repository.find(release))
        answers_to_detect = self._print_answers_to_detect(baseline)
        rollout_end = roll_out(
            repository,
            release,
            shares,
            self.limits,
            announce=self._announce,
            read_report=self._wait_for_report,
            baseline=baseline,
        )
        offer = rollout_end.offer
        if n_trials := len(rollout_end.report.trial_devices):
            note(
                f"gatewise: {plural(n_trials, 'device')} may still reject {offer}, which is on "
                "trial there: look again with gatewise repo status"
            )
        return rollout_end, {
            "version": repository.version,
            "release": str(offer),
            "rollout": offer.rollout / FULL_ROLLOUT,
            "end": rollout_end.outcome,
            "aborted": rollout_end.abort_reason,
            **rollout_end.report.to_dict(),
            "answers_to_find": answers_to_detect,
            "not_compared": _print_undecided_metrics(self.limits, rollout_end.report),
        }

    def _announce(self, offer: OfferedRelease) -> None:
        """Announce an offer; if the broker is down, devices notice it at their next check."""
        try:
            announce(self.repository, [offer], self.endpoint)
        except LinkError as error:
            note(f"gatewise: {offer} at {share_text(offer)} is not announced: {error}")

    def _wait_for_report(self, offer: OfferedRelease) -> RolloutReport | None:
        """Wait, then read and print a report; None while the broker is down, as in a restart."""
        time.sleep(self.check_interval_s)
        try:
            report = self._read_report(offer)
        except LinkError as error:
            note(f"gatewise: {offer} at {share_text(offer)}: no report: {error}")
            return None
        note(f"{offer} at {share_text(offer)}: {_describe_report(report)}")
        return report

    def _print_answers_to_detect(self, baseline: RolloutReport) -> dict[str, int]:
        """Print and return how many answers detect EFFECT above --worse-by, by metric."""
        answers_by_metric = {
            metric: math.ceil(n_answers)
            for metric, n_answers in self.limits.answers_to_detect(baseline).items()
        }
        detectable_points = 100 * ((self.limits.worse_by or 0.0) + EFFECT)
        for metric, n_answers in answers_by_metric.items():
            note(
                f"--worse-by detects {detectable_points:g} points of {metric} within about "
                f"{n_answers:,} answers"
            )
        return answers_by_metric

    def _read_report(self, offer: OfferedRelease) -> RolloutReport:
        return read_reports([offer], self.endpoint)[offer]


def share_text(offer: OfferedRelease) -> str:
    """Write the share of the devices that get an offer, such as 5%."""
    return f"{offer.rollout / 100:g}%"


def _describe_report(report: RolloutReport) -> str:
    shares = ", ".join(
        f"{metric} {percent(report.comparison(metric).release.share)}" for metric in METRICS
    )
    n_running = len(report.running_devices)
    trial_text = f", {len(report.trial_devices)} of them on trial" * bool(report.trial_devices)
    n_refusing = len(report.refusing_devices)
    return (
        f"{plural(n_running, 'device')} {'runs' if n_running == 1 else 'run'} it{trial_text}, it "
        f"failed on {n_refusing}; {shares}"
    )


def _print_undecided_metrics(limits: AbortLimits, report: RolloutReport) -> list[str]:
    """Print why --worse-by could not compare some metrics, and return these metrics."""
    reasons = limits.undecided_reasons(report)
    for metric, reason in reasons.items():
        note(f"gatewise: --worse-by did not compare {metric}: {reason}")
    return list(reasons)
