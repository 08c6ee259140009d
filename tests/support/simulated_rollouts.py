"""Rollouts of a release to simulated fleets of 100 devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise_cloud.broker.abort_limits import AbortLimits
from gatewise_cloud.broker.rollout import roll_out
from gatewise_cloud.broker.rollout_report import METRICS, RolloutReport
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease

N_DEVICES = 100
NAMES = np.array([f"pi-{i}" for i in range(N_DEVICES)])


class InMemoryRepository:
    """Release repository with one offer in memory, without keys and files."""

    def __init__(self, version: int) -> None:
        self.version = 1
        self._offer = OfferedRelease("small", f"{version}", 1, 0, "00" * 32)

    def find(self, release: str) -> OfferedRelease:
        return self._offer

    def preferred_release(self, model: str) -> OfferedRelease | None:
        return self._offer if self._offer.rollout else None

    def publish(self, release: str, share: float, *, expected_version: int) -> OfferedRelease:
        self.version += 1
        self._offer = replace(self._offer, rollout=round(share * FULL_ROLLOUT))
        return self._offer

    def rollback(self, release: str) -> OfferedRelease:
        return self.publish(release, 0.0, expected_version=self.version)


class SimulatedFleet:
    """Simulated fleet of 100 devices, which audits a tenth of its answers."""

    def __init__(self, rng: np.random.Generator, excess: float, *, n_offline: int = 0) -> None:
        self._rng = rng
        self._excess = excess
        # The devices differ: 5 % of the answers disagree, with a standard deviation of 1 %.
        self._disagreement_rates = np.clip(rng.normal(0.05, 0.01, N_DEVICES), 0.001, 1.0)
        self._is_offline = np.arange(N_DEVICES) < n_offline
        # Disagreements and answers of each device, with the release and without it.
        self._counts = {has_release: np.zeros((N_DEVICES, 2)) for has_release in (True, False)}
        self._has_release = np.zeros(N_DEVICES, bool)
        self._is_offered: dict[OfferedRelease, np.ndarray] = {}
        self.largest_share = 0.0
        for _ in range(10):  # before the rollout
            self._answer_instances()

    def _answer_instances(self) -> None:
        """Answer about 100 instances on each device, and audit 5 to 15 of them."""
        for has_release, counts in self._counts.items():
            in_group = ~self._is_offline & (self._has_release == has_release)
            n_audits = self._rng.integers(5, 16, N_DEVICES) * in_group
            n_disagreeing = self._rng.binomial(
                n_audits, self._disagreement_rates + (self._excess if has_release else 0.0)
            )
            # An audit with the probability of a tenth counts ten times.
            counts += 10.0 * np.column_stack([n_disagreeing, n_audits])

    def step_and_report(self, offer: OfferedRelease) -> RolloutReport:
        """Set the groups by the offer, answer instances, and report the counts of the groups."""
        if offer not in self._is_offered:
            self._is_offered[offer] = np.array([offer.is_for(name) for name in NAMES.tolist()])
        is_offered = self._is_offered[offer]
        self._has_release = is_offered & ~self._is_offline
        self.largest_share = max(self.largest_share, is_offered.mean())
        self._answer_instances()
        counts_by_group = {}
        for has_release, counts in self._counts.items():
            in_group = ~self._is_offline & (self._has_release == has_release)
            group_counts = [
                (n_cases, n_answers)
                for n_cases, n_answers in counts[in_group].tolist()
                if n_answers
            ]
            counts_by_group[has_release] = {metric: [] for metric in METRICS} | {
                "disagreement": group_counts
            }
        return RolloutReport(
            running_devices=self._names(self._has_release),
            other_devices=self._names(~self._has_release & ~self._is_offline),
            offline_devices=self._names(self._is_offline),
            offered_devices=self._names(is_offered),
            release_counts=counts_by_group[True],
            other_counts=counts_by_group[False],
        )

    def _names(self, mask: np.ndarray) -> frozenset[str]:
        return frozenset(NAMES[mask].tolist())


def simulate_rollouts(excess, worse_by, *, n_offline=0, n_fleets):
    """Return the outcome and the largest offered share of a rollout to each simulated fleet."""
    outcomes_and_shares = []
    for seed in range(n_fleets):
        fleet = SimulatedFleet(np.random.default_rng(seed), excess, n_offline=n_offline)
        repository = InMemoryRepository(seed)
        end = roll_out(
            repository,
            "small/1",
            (0.05, 0.25, 0.5, 1.0),
            AbortLimits(failed=0.05, worse_by=worse_by),
            announce=lambda offer: None,
            read_report=fleet.step_and_report,
            baseline=fleet.step_and_report(repository.find("small/1")),
        )
        outcomes_and_shares.append((end.outcome, fleet.largest_share))
    return outcomes_and_shares
