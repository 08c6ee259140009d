"""Limits of a rollout beyond which a release is withdrawn."""

from __future__ import annotations

import math
from typing import Annotated, Final

import typer
from msgspec import Meta

from gatewise.errors import InputError
from gatewise.settings import Settings
from gatewise_cloud.broker.comparison import ALPHA, EFFECT, MIN_DEVICES, answers_to_detect
from gatewise_cloud.broker.rollout_report import METRICS, RolloutReport

#: Smallest number of failures for which a release is withdrawn, because one or two devices may fail
#: for reasons of their own.
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
    the share with other versions. A metric is compared once three devices with the release and
    three others report it. A release that keeps the limit is withdrawn with a probability of at
    most :data:`.ALPHA`. An undecided comparison stops the rollout below half of the devices, unless
    `accept_undecided`.
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

    def undecided_reasons(self, report: RolloutReport) -> dict[str, str]:
        """Explain which comparisons have not ended, by metric; empty without `worse_by`."""
        if self.worse_by is None:
            return {}
        reasons = {}
        for metric, (status_word, _) in METRICS.items():
            release, other_versions = report.comparison(metric)
            if min(release.n_devices, other_versions.n_devices) < MIN_DEVICES:
                reasons[metric] = (
                    f"{release.n_devices} devices with the release and {other_versions.n_devices} "
                    f"with other versions report it, but {MIN_DEVICES} of each are needed"
                    + (" (gatewise edge --audit)" if status_word == "audited" else "")
                )
        for metric, fraction in self.information_fractions(
            report, is_last_step_before_half=True
        ).items():
            if metric not in reasons:
                reasons[metric] = (
                    f"devices differ too much, or answered too few instances, to detect "
                    f"{100 * EFFECT:.0f} points above the limit: only {fraction:.0%} of the needed "
                    "information is available"
                )
        return reasons

    def answers_to_detect(self, baseline: RolloutReport) -> dict[str, float]:
        """Estimate how many answers are needed to detect EFFECT above `worse_by`, by metric."""
        if self.worse_by is None:
            return {}
        counts_by_metric = {metric: baseline.other_counts.get(metric, []) for metric in METRICS}
        return {
            metric: answers_to_detect(device_counts)
            for metric, device_counts in counts_by_metric.items()
            if len(device_counts) >= MIN_DEVICES
        }

    def information_fractions(
        self, report: RolloutReport, *, is_last_step_before_half: bool
    ) -> dict[str, float]:
        """Compute the share of the needed information for each comparison that has not ended.

        At the last step before half of the devices a comparison ends once it can detect EFFECT. At
        other steps it ends once the standard error is below the larger of EFFECT and the limit.
        Until MIN_DEVICES devices run the release, other steps compare nothing. A metric is not
        compared if too few devices with other versions report it.
        """
        fractions: dict[str, float] = {}
        if self.worse_by is None or (
            len(report.running_devices) < MIN_DEVICES and not is_last_step_before_half
        ):
            return fractions
        for metric in METRICS:
            comparison = report.comparison(metric)
            if comparison.other_versions.n_devices < MIN_DEVICES:
                continue
            if comparison.release.n_devices < MIN_DEVICES:
                fractions[metric] = 0.0
            elif is_last_step_before_half:
                fractions[metric] = comparison.information_fraction
            else:
                fractions[metric] = (max(self.worse_by, EFFECT) / comparison.standard_error) ** 2
        return {metric: fraction for metric, fraction in fractions.items() if fraction < 1.0}

    def reason_to_abort(self, report: RolloutReport, n_silent: int = 0) -> str | None:
        """Get the reason to withdraw a release, or None; `n_silent` devices fell silent."""
        n_failures = len(report.refusing_devices) + n_silent
        n_ran = len(report.running_devices) + n_failures
        limit = math.inf if self.failed is None else self.failed * n_ran
        if n_failures >= _MIN_FAILURES and n_failures > limit:
            silence = f", {n_silent} of which fell silent" if n_silent else ""
            return f"it failed on {n_failures} of {n_ran} devices{silence}"
        if self.worse_by is not None:
            for metric in METRICS:
                comparison = report.comparison(metric)
                # the evidence is an e-value, with a Bonferroni correction for the metrics
                if comparison.evidence(self.worse_by) >= len(METRICS) / ALPHA:
                    return (
                        f"{metric} {100 * comparison.release.share:.1f} %, "
                        f"{100 * comparison.excess:.1f} points more than with other versions "
                        f"(standard error {100 * comparison.standard_error:.2f})"
                    )
        return None
