"""Audit a device's answers: choose which are sent, compare them with the high-cost model's.

:mod:`.audit` has the mathematics; :class:`gatewise_edge.Device` sends, and acts on an alarm.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gatewise.errors import InputError
from gatewise_edge.device.answer import Route
from gatewise_edge.device.audit import AgreementTest, AuditSampler
from gatewise_edge.device.plan import StagePlan
from gatewise_edge.link.messages import MAX_SKIPPED, AuditMark, Response
from gatewise_export.bundle.manifest import Manifest

AuditAction = Literal["report", "safer", "offload"]

#: Seconds to wait for the response to an audit; no instance waits for it.
AUDIT_PATIENCE: Final = 10.0
#: What the share of disagreement may exceed that of validation rows by.
_TOLERANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Audit:
    """How a device audits its own answers.

    Parameters
    ----------
    share : float, default 0.02
        Part of the answers of stages that is sent to the high-cost model, too.
    bound : float, optional
        Share of the instances that may be answered otherwise than by the high-cost model; by
        default that of the operating point on validation rows plus 0.01.
    level : float, default 0.05
        Probability of a false alarm, at most, over any length.
    action : {"report", "safer", "offload"}, default "report"
        After an alarm: only report it; move to the cheapest operating point that disagreed at
        most half as often on validation rows (to offload all if there is none); offload all.

    Raises
    ------
    InputError
        If a setting is out of range.
    """

    share: float = 0.02
    bound: float | None = None
    level: float = 0.05
    action: AuditAction = "report"

    def __post_init__(self) -> None:
        AuditSampler(self.share)
        AgreementTest(0.5 if self.bound is None else self.bound, level=self.level)
        if self.action not in get_args(AuditAction):
            known = ", ".join(get_args(AuditAction))
            raise InputError(f"audit: action {self.action!r}; choose one of {known}")


class Auditor:
    """The audit of one bundle at one operating point. Thread-safe.

    `promised` is the share of instances that may be answered otherwise than by the high-cost model
    where the audit has no bound of its own, see :func:`disagreement_bound`. When that no longer
    holds `on_alarm` gets the auditor, once, on the link's thread. Whoever takes the alarm may set
    `offload_all`: stages are not to be trusted.
    """

    def __init__(
        self,
        audit: Audit,
        plan: StagePlan,
        promised: float | None,
        on_alarm: Callable[[Auditor], None],
        rng: random.Random,
    ) -> None:
        if set(plan.tiers) != {"device"}:
            raise InputError("audit: this bundle's stages beyond the device would answer audits")
        bound = promised if audit.bound is None else audit.bound
        if bound is None:
            raise InputError(
                "audit: the bundle does not say how often its answers agree with the high-cost "
                "model's; give a bound, or pack it again"
            )
        self.test = AgreementTest(bound, level=audit.level)
        self._cost = 0.0
        self._n_stages = plan.n_stages
        self._sampler = AuditSampler(audit.share)
        self._on_alarm = on_alarm
        self.offload_all = False
        self._rng = rng
        self._skipped = 0  # instances observed since the last audit that was sent
        self._lock = threading.Lock()

    def choose(self, route: Route, class_index: int, confidence: float) -> AuditMark | None:
        """Decide whether to audit an answer: the mark of its audit, or None.

        `confidence` is the answer's largest probability. Instances are no evidence while no audit
        could be sent, nor are fallbacks: the device had no choice.
        """
        if route == "fallback":
            return None
        with self._lock:
            if route == "edge":
                p = self._sampler.probability(confidence)
                if self._rng.random() < p:
                    mark = AuditMark(class_index, p, min(self._skipped, MAX_SKIPPED))
                    self._skipped = 0
                    return mark
            self.test.skip()
            self._skipped += 1
        return None

    def compare(self, mark: AuditMark, response: Response) -> None:
        """Compare an audited answer with the high-cost model's."""
        if response.exits is not None and int(response.exits[0]) != self._n_stages:
            return
        with self._lock:
            before = self.test.alarm
            disagrees = int(response.labels[0]) != mark.class_index
            self.test.audit(disagrees=disagrees, probability=mark.probability)
            alarmed = self.test.alarm and not before
        if alarmed:
            self._on_alarm(self)

    def charge(self, cost: float) -> None:
        """Add the cost of features that were acquired for an audit alone."""
        with self._lock:
            self._cost += cost

    @property
    def counters(self) -> dict[str, int]:
        """``audits`` and ``audits_disagreed``."""
        with self._lock:
            return {"audits": self.test.audits, "audits_disagreed": self.test.disagreed}

    @property
    def gauges(self) -> dict[str, float]:
        """Of this bundle's audit.

        ``audit_evidence``, ``audit_alarm`` (0 or 1), ``audit_cost`` (sum of features' costs);
        ``audit_instances`` of which about ``audit_weighted`` were answered otherwise, and
        ``audit_alarm_at`` of them when the alarm was raised (0: it was not).
        """
        with self._lock:
            return {
                "audit_instances": float(self.test.instances),
                "audit_weighted": self.test.weighted,
                "audit_evidence": self.test.evidence,
                "audit_alarm": float(self.test.alarm),
                "audit_alarm_at": float(self.test.alarm_at or 0),
                "audit_cost": self._cost,
            }


def disagreement_bound(manifest: Manifest) -> float | None:
    """Share of instances that may be answered otherwise than by the high-cost model.

    None if the manifest does not say how often its answers agreed.
    """
    agreement = manifest.active_point.agreement
    return None if agreement is None else min(1.0 - agreement + _TOLERANCE, 0.99)


def safer_point(manifest: Manifest) -> int | None:
    """The cheapest operating point that disagreed at most half as often; certified ones first.

    Only points that keep the manifest's bounds on classes.
    """
    disagreed = 1.0 - (manifest.active_point.agreement or 0.0)
    safer = [
        (point.guarantee is None, point.cost, i)
        for i, point in enumerate(manifest.operating_points)
        if point.agreement is not None
        and 1.0 - point.agreement <= disagreed / 2
        and manifest.keeps_bounds(i)
    ]
    return min(safer)[2] if safer and disagreed > 0 else None
