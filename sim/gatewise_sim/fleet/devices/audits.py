"""Audits of a simulated fleet: the device's own auditor, in virtual time.

:class:`gatewise_edge.device.audit.AuditSampler` chooses the answers,
:class:`gatewise_cloud.worker.fleet_audit.FleetAudit` tests them. A live device draws with the same
seed, so that both engines audit the same instances.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewise_edge.link.messages import AuditMark


@dataclass(slots=True)
class AuditCounts:
    """Counters of the audits of all devices.

    `audit_cost` is that of features acquired for audits alone.
    """

    audits: int = 0
    audits_disagreed: int = 0
    audit_cost: float = 0.0

    def compare(self, mark: AuditMark, label: int) -> None:
        """Count an audited answer beside the class index that the high-cost model gives."""
        self.audits += 1
        self.audits_disagreed += mark.class_index != label


def audit_seed(seed: int, device: int) -> int:
    """Seed of a device's choice of answers to audit, in a run with a seed of its own."""
    return (seed << 32) + device
