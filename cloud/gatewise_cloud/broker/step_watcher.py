"""Reading of reports until a step of a rollout has evidence, exceeds a limit or is given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from statistics import fmean
from typing import Final

from gatewise_cloud.broker.abort_limits import AbortLimits
from gatewise_cloud.broker.comparison import MIN_DEVICES
from gatewise_cloud.broker.rollout_report import METRICS, RolloutReport
from gatewise_export.repository.release import OfferedRelease

#: Number of consecutive reports without evidence after which the release is withdrawn.
_MAX_REPORTS_WITHOUT_EVIDENCE: Final = 10
#: A comparison is given up if its decision is expected to take more than this many further reports.
#: The estimate from few reports is uncertain, so the limit of the first _N_EARLY_REPORTS is larger.
_MAX_EXPECTED_REPORTS: Final = 400
_MAX_EXPECTED_REPORTS_EARLY: Final = 4000
_N_EARLY_REPORTS: Final = 30
#: Largest number of reports of a comparison.
_MAX_COMPARISON_REPORTS: Final = 200


class StepWatcher:
    """Reader of the reports on the steps of a rollout.

    `has_evidence` says whether enough devices run the release. The comparisons of
    `undecided_metrics` have not ended. `n_reports` is the number of reports on the step.
    """

    def __init__(
        self,
        limits: AbortLimits,
        *,
        read_report: Callable[[OfferedRelease], RolloutReport | None],
        wait: Callable[[], None],
        show_progress: Callable[[OfferedRelease, RolloutReport], None],
        latest_report: RolloutReport,
    ) -> None:
        self._limits = limits
        self._read_report = read_report
        self._wait = wait
        self._show_progress = show_progress
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
            self._wait()
            self.n_reports += 1
            latest_report = self._read_report(offer)
            if latest_report is None:
                self.has_evidence = False
                n_without_evidence += 1
                continue
            self.latest_report = latest_report
            self._show_progress(offer, latest_report)
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
