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
class PolicyContext:
    """Figures of the system's run from which the other policies are made.

    `table` holds the outcomes of the rows at the operating point, `weights`, shape (n_rows,), the
    number of instances of each row, and `offload_rate` the system's rate. `labelled` tells whether
    the rows have labels.
    """

    table: RowTable
    weights: NDArray[np.float64]
    offload_rate: float
    labelled: bool
    scenario: Scenario


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy to compare with the system.

    `offload` selects the rows to offload, or returns None if the policy does not apply to the run.
    `chance` computes the share of the other instances to offload at random. With `request_first` a
    device sends a request without running its stages.
    """

    key: str
    name: str
    offload: Callable[[PolicyContext], BoolArray | None]
    chance: Callable[[PolicyContext], float] = lambda context: 0.0
    request_first: bool = False

    def make(self, context: PolicyContext) -> FleetPolicy | None:
        """Make the fleet's policy, or return None if it does not apply."""
        offload = self.offload(context)
        if offload is None:
            return None
        return FleetPolicy(
            key=self.key,
            name=self.name,
            offload=offload & context.table.can_offload,
            chance=self.chance(context),
            request_first=self.request_first,
        )


def _no_rows(context: PolicyContext) -> BoolArray:
    return np.zeros(len(context.table), np.bool_)


def _all_rows(context: PolicyContext) -> BoolArray | None:
    return np.ones(len(context.table), np.bool_) if context.table.has_cloud else None


def _least_confident(context: PolicyContext) -> BoolArray | None:
    """Select the rows of lowest confidence, at the system's offload rate."""
    table = context.table
    if not table.has_cloud:
        return None
    # Rows without an answer of the device come first.
    confidence = np.where(np.isnan(table.confidence), -1.0, table.confidence)
    order = np.argsort(confidence, kind="stable")
    return fill_share(order[table.can_offload[order]], context.weights, context.offload_rate)


def _no_rows_with_cloud(context: PolicyContext) -> BoolArray | None:
    return _no_rows(context) if context.table.has_cloud else None


def _same_rate(context: PolicyContext) -> float:
    """Compute the share of the rows that can be offloaded that gives the system's offload rate."""
    possible = float(context.weights[context.table.can_offload].sum() / context.weights.sum())
    return min(1.0, context.offload_rate / possible) if possible else 0.0


def _oracle(context: PolicyContext) -> BoolArray | None:
    """Select the rows that the device answers wrongly and the cloud correctly."""
    table = context.table
    if not (table.has_cloud and context.labelled):
        return None
    return np.asarray(
        (table.cloud_label == table.truth) & (table.local_label != table.truth), np.bool_
    )


SYSTEM: Final = "system"
POLICIES: Final = (
    ComparedPolicy("edge_only", "All edge", _no_rows),
    ComparedPolicy("cloud_only", "All cloud", _all_rows, request_first=True),
    ComparedPolicy("confidence", "Confidence", _least_confident),
    # Draw among instances, because a draw among rows would be repeated in the whole run.
    ComparedPolicy("random", "Random", _no_rows_with_cloud, _same_rate),
    ComparedPolicy("oracle", "Oracle", _oracle),
)


def system_policy(scenario: Scenario, table: RowTable) -> FleetPolicy:
    """Make the policy that the fleet of a scenario runs."""
    name = "Gatewise" if scenario.policy == "system" else scenario.policy
    no_rows = np.zeros(len(table), np.bool_)
    if scenario.policy == "edge-only":
        return FleetPolicy(key=SYSTEM, name=name, offload=no_rows)
    if scenario.policy == "cloud-only":
        if not table.has_cloud:
            raise InputError("policy cloud-only: this bundle has no cloud model")
        return FleetPolicy(key=SYSTEM, name=name, offload=table.can_offload, request_first=True)
    return FleetPolicy(key=SYSTEM, name=name, offload=table.offload, limited=True)


def fill_share(order: NDArray[np.intp], weights: NDArray[np.float64], share: float) -> BoolArray:
    """Select the first rows of an order, up to the number with a weight nearest to `share`.

    >>> fill_share(np.array([2, 0, 1]), np.ones(4), 0.5).tolist()
    [True, False, True, False]
    """
    cumulative = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    n_rows = int(np.argmin(np.abs(cumulative - share)))
    mask = np.zeros(len(weights), np.bool_)
    mask[order[:n_rows]] = True
    return mask
