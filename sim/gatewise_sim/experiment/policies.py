"""The system's policy, and others that a simulation compares with it on the same instances.

Each policy uses the stages of the same bundle for the device's answers. Policies differ in the rows
that they offload. To add one, add it to :func:`compared_policies`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.results import NO_LABEL, BoolArray, RowTable
from gatewise_sim.fleet.run import FleetPolicy
from gatewise_sim.scenario import Scenario

SYSTEM_KEY: Final = "system"


def count_compared_policies(table: RowTable) -> int:
    """Count the policies that :func:`compared_policies` makes, before the system has run."""
    if not table.has_cloud:
        return 1
    return 5 if _has_labels(table) else 4


def compared_policies(
    table: RowTable, row_weights: NDArray[np.float64], offload_rate: float
) -> list[FleetPolicy]:
    """Make the policies that a simulation compares with the system.

    Policies that need a high-cost model, or labels, are left out without one. `row_weights`, shape
    (n_rows,), is the number of the run's instances of each row, and `offload_rate` is the system's.
    """
    no_rows = np.zeros(len(table), np.bool_)
    edge_only = FleetPolicy(key="edge_only", name="All edge", is_offloaded=no_rows)
    if not table.has_cloud:
        return [edge_only]
    policies = [
        edge_only,
        FleetPolicy(
            key="cloud_only",
            name="All cloud",
            is_offloaded=table.can_offload,
            is_cloud_first=True,
        ),
    ]
    # The least confident rows, at the system's rate; rows without an answer of the device first.
    confidence = np.where(np.isnan(table.confidence), -1.0, table.confidence)
    order = np.argsort(confidence, kind="stable")
    least_confident = select_share(order[table.can_offload[order]], row_weights, offload_rate)
    policies.append(FleetPolicy(key="confidence", name="Confidence", is_offloaded=least_confident))
    # Draw among instances, because all instances of a drawn row would be offloaded.
    offloadable_share = float(row_weights[table.can_offload].sum() / row_weights.sum())
    random_share = min(1.0, offload_rate / offloadable_share) if offloadable_share else 0.0
    policies.append(
        FleetPolicy(key="random", name="Random", is_offloaded=no_rows, random_share=random_share)
    )
    if _has_labels(table):
        # The rows that the device answers wrongly and the cloud correctly.
        is_corrected = (table.cloud_label == table.truth) & (table.local_label != table.truth)
        policies.append(
            FleetPolicy(key="oracle", name="Oracle", is_offloaded=is_corrected & table.can_offload)
        )
    return policies


def _has_labels(table: RowTable) -> bool:
    return bool((table.truth != NO_LABEL).any())


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
