"""Audits of a simulated fleet: the device's own auditor, in virtual time.

What is chosen, sent and tested is decided by :class:`gatewise_edge.device.auditor.Auditor` and
:class:`gatewise_cloud.worker.counters.FleetAudit`. A live device draws with the same seed, so that
both engines audit the same instances.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

from gatewise_edge.device.auditor import Audit, Auditor
from gatewise_sim.fleet.routes import Routes

_SUMMED: Final = (
    "audits", "audits_disagreed", "audit_instances", "audit_weighted", "audit_cost",
)  # fmt: skip


def audit_seed(seed: int, device: int) -> int:
    """Seed of a device's choice of answers to audit, in a run with a seed of its own."""
    return (seed << 32) + device


def make_auditor(routes: Routes, share: float, seed: int) -> Auditor:
    """Make the auditor of a device that audits a share of its own answers.

    Nothing is logged: alarms are counted at the end. InputError if the bundle's answers cannot be
    audited.
    """
    return Auditor(
        Audit(share), routes.plan, routes.disagreement_bound, lambda _: None, random.Random(seed)
    )


def audit_sums(devices: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums of what devices count of their audits, by name; empty if they have none."""
    sums: dict[str, float] = {}
    for counted in devices:
        for name in _SUMMED:
            if name in counted:
                sums[name] = sums.get(name, 0.0) + counted[name]
    return sums
