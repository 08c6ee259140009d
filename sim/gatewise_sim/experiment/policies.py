"""The system's policy, and others that a simulation compares with it on the same instances.

Each policy uses the stages of the same bundle for the device's answers. Policies differ in the rows
that they offload. To add one, add an entry to :data:`POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.results import BoolArray, RowTable
from gatewise_sim.fleet.run import FleetPolicy
from gatewise_sim.scenario import Scenario


@dataclass(frozen=True, eq=False, kw_only=True)
class SystemRun:
    """Figures of the system's run from which the other policies are made.

    `table` contains the outcomes of the rows at the operating point. `row_weights`, shape
    (n_rows,), is the number of instances of each row, and `offload_rate` is the system's rate.
    `has_labels` says whether the rows have labels.
    """

    table: RowTable
    row_weights: NDArray[np.float64]
    offload_rate: float
    has_labels: bool


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy to compare with the system.

    `select_rows` selects the rows to offload, or returns None if the policy does not apply to the
    run. `compute_random_share` computes the share of the other instances to offload at random. With
    `is_cloud_first` a device sends a request without running its stages.
    """

    key: str
    name: str
    select_rows: Callable[[SystemRun], BoolArray | None]
    compute_random_share: Callable[[SystemRun], float] = lambda system_run: 0.0
    is_cloud_first: bool = False

    def make_policy(self, system_run: SystemRun) -> FleetPolicy | None:
        """Make the fleet's policy, or return None if it does not apply."""
        is_offloaded = self.select_rows(system_run)
        if is_offloaded is None:
            return None
        return FleetPolicy(
            key=self.key,
            name=self.name,
            is_offloaded=is_offloaded & system_run.table.can_offload,
            random_share=self.compute_random_share(system_run),
            is_cloud_first=self.is_cloud_first,
        )


def _select_no_rows(system_run: SystemRun) -> BoolArray:
    return np.zeros(len(system_run.table), np.bool_)


def _select_all_rows(system_run: SystemRun) -> BoolArray | None:
    return np.ones(len(system_run.table), np.bool_) if system_run.table.has_cloud else None


def _select_least_confident(system_run: SystemRun) -> BoolArray | None:
    """Select the rows of lowest confidence, at the system's offload rate."""
    table = system_run.table
    if not table.has_cloud:
        return None
    # Rows without an answer of the device come first.
    confidence = np.where(np.isnan(table.confidence), -1.0, table.confidence)
    order = np.argsort(confidence, kind="stable")
    return select_share(
        order[table.can_offload[order]], system_run.row_weights, system_run.offload_rate
    )


def _select_no_rows_with_cloud(system_run: SystemRun) -> BoolArray | None:
    return _select_no_rows(system_run) if system_run.table.has_cloud else None


def _compute_share_at_system_rate(system_run: SystemRun) -> float:
    """Compute the share of the offloadable rows at which the offload rate is the system's."""
    offloadable_share = float(
        system_run.row_weights[system_run.table.can_offload].sum() / system_run.row_weights.sum()
    )
    return min(1.0, system_run.offload_rate / offloadable_share) if offloadable_share else 0.0


def _select_cloud_corrections(system_run: SystemRun) -> BoolArray | None:
    """Select the rows that the device answers wrongly and the cloud correctly."""
    table = system_run.table
    if not (table.has_cloud and system_run.has_labels):
        return None
    return np.asarray(
        (table.cloud_label == table.truth) & (table.local_label != table.truth), np.bool_
    )


SYSTEM_KEY: Final = "system"
POLICIES: Final = (
    ComparedPolicy("edge_only", "All edge", _select_no_rows),
    ComparedPolicy("cloud_only", "All cloud", _select_all_rows, is_cloud_first=True),
    ComparedPolicy("confidence", "Confidence", _select_least_confident),
    # Draw among instances, because all instances of a drawn row would be offloaded.
    ComparedPolicy("random", "Random", _select_no_rows_with_cloud, _compute_share_at_system_rate),
    ComparedPolicy("oracle", "Oracle", _select_cloud_corrections),
)


def system_policy(scenario: Scenario, table: RowTable) -> FleetPolicy:
    """Make the policy that the fleet of a scenario runs."""
    name = "Gatewise" if scenario.policy == "system" else scenario.policy
    is_offloaded = np.zeros(len(table), np.bool_)
    if scenario.policy == "edge-only":
        return FleetPolicy(key=SYSTEM_KEY, name=name, is_offloaded=is_offloaded)
    if scenario.policy == "cloud-only":
        if not table.has_cloud:
            raise InputError(
                "policy cloud-only: the bundle has no high-cost model; choose system or edge-only"
            )
        return FleetPolicy(
            key=SYSTEM_KEY, name=name, is_offloaded=table.can_offload, is_cloud_first=True
        )
    return FleetPolicy(
        key=SYSTEM_KEY, name=name, is_offloaded=table.is_offloaded, has_audits_and_limit=True
    )


def select_share(
    order: NDArray[np.intp], row_weights: NDArray[np.float64], share: float
) -> BoolArray:
    """Select the first rows of `order`, up to the weight that is nearest to `share`.

    >>> select_share(np.array([2, 0, 1]), np.ones(4), 0.5).tolist()
    [True, False, True, False]
    """
    cumulative_shares = np.concatenate([[0.0], np.cumsum(row_weights[order])]) / row_weights.sum()
    n_rows = int(np.argmin(np.abs(cumulative_shares - share)))
    is_selected = np.zeros(len(row_weights), np.bool_)
    is_selected[order[:n_rows]] = True
    return is_selected
