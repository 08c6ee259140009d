"""Audits of a simulated fleet: the device's own auditor, in virtual time.

What is chosen, sent and tested is decided by :class:`gatewise_edge.device.auditor.Auditor` and
:class:`gatewise_cloud.worker.counters.FleetAudit`. A live device draws with the same seed, so that
both engines audit the same instances.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from gatewise.errors import InputError
from gatewise_edge.device.answer import Route
from gatewise_edge.device.auditor import Audit, Auditor
from gatewise_edge.link.messages import AuditMark
from gatewise_edge.stages.plan import StagePlan
from gatewise_sim.fleet.answers import ROUTES
from gatewise_sim.fleet.routes import Routes

_SUMMED: Final = (
    "audits", "audits_disagreed", "audit_instances", "audit_weighted", "audit_cost",
)  # fmt: skip
_ROUTES: Final[tuple[Route, ...]] = ("edge", "cloud", "fallback")
_ERROR: Final = ROUTES.index("error")


def audit_seed(seed: int, device: int) -> int:
    """Seed of a device's choice of answers to audit, in a run with a seed of its own."""
    return (seed << 32) + device


@dataclass(frozen=True, slots=True, eq=False)
class AuditRules:
    """What the auditors of a fleet's devices are made of; the lists are by row.

    `labels` and `confidences` are those of the device's own answers, `cloud_labels` the high-cost
    model's (negative: a value keeps the row from being sent). `costs` are those of the features
    that an audit acquires.
    """

    audit: Audit
    plan: StagePlan
    promised: float | None
    seed: int
    labels: list[int]
    confidences: list[float]
    cloud_labels: list[int]
    costs: list[float]

    @classmethod
    def from_routes(cls, routes: Routes, share: float, seed: int) -> Self:
        """Rules of the devices of a fleet that audit a share of their own answers.

        Raises InputError if audits make no sense for the routes.
        """
        if routes.chance:
            raise InputError("audits test the gate's decisions; these are drawn by chance")
        rules = cls(
            audit=Audit(share),
            plan=routes.plan,
            promised=routes.disagreement_bound,
            seed=seed,
            labels=routes.local_label.tolist(),
            confidences=routes.confidence.tolist(),
            cloud_labels=routes.cloud_label.tolist(),
            costs=(routes.request_cost - routes.local_cost).tolist(),
        )
        rules.auditor(0)  # raises what is wrong with the bundle
        return rules

    def auditor(self, device: int) -> Auditor:
        """Make a device's auditor. Nothing is logged: alarms are counted at the end."""
        rng = random.Random(audit_seed(self.seed, device))
        return Auditor(self.audit, self.plan, self.promised, lambda _: None, rng)

    def choose(self, auditor: Auditor, route: int, row: int) -> AuditMark | None:
        """Decide whether to audit an answer, as a device does: the mark of its audit, or None."""
        if route == _ERROR:
            return None
        mark = auditor.choose(_ROUTES[route], self.labels[row], self.confidences[row])
        if mark is None or self.cloud_labels[row] < 0:
            return None
        auditor.charge(self.costs[row])
        return mark


def audit_sums(devices: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums of what devices count of their audits, by name; empty if they have none."""
    sums: dict[str, float] = {}
    for counted in devices:
        for name in _SUMMED:
            if name in counted:
                sums[name] = sums.get(name, 0.0) + counted[name]
    return sums
