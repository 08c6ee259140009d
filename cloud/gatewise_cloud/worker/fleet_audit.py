"""Sequential test that a fleet's answers agree with the high-cost model as often as promised.

Devices send a random share of their own answers to the high-cost model to be audited. Let p be the
probability with which an answer is audited, and D = 1 if the high-cost model gives another answer,
otherwise 0. The share of disagreement is the share of instances that the device and the high-cost
model answer differently. An offloaded instance has D = 0. The weight 1/p corrects for the fact that
devices audit doubtful answers more often.

A bound b on that share is tested by betting (Waudby-Smith & Ramdas, "Estimating means of bounded
random variables by betting", 2023, section 4). Money is multiplied by ``1 - l b`` for an offload,
by ``1 + (l/p) (D - b)`` for an audited answer, and by 1 for an answer that is not audited. As
long as the bound holds, the mean of the product is at most 1, because the mean over audited and
other answers is ``1 + l (D - b)``. No factor waits for the next audit of its device. If an audit
also counted the answers since the previous audit, devices without an audit so far would be left
out, and the test would overestimate the share in a large fleet.

New bets begin every few instances, each with a part of one unit of money. The test therefore
detects a loss of agreement soon after it begins. The sum of the money is a test supermartingale. By
Ville's inequality the probability that it ever reaches ``1 / level`` is at most `level`, however
long the test runs.

The test runs in the worker, because all devices together give evidence of a loss for which a single
device has too few instances.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gatewise_cloud.worker.batcher import ModelKey
from gatewise_edge.link.messages import AuditMark

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger(__name__)

#: Largest probability of a false alarm.
_LEVEL: Final = 0.05
#: Bets as shares of the largest allowed bet.
_BETS: Final = (0.9, 0.45, 0.15)
#: Smallest probability of an audit, as a share of the mean and of the largest probability of its
#: device (gatewise_edge.device.audit_sampler). The first audits of a device have the mean
#: probability.
_SHARE_OF_MEAN: Final = 0.2
_SHARE_OF_LARGEST: Final = 0.02
#: Number of audits before the first bets, from which the smallest probability is learned.
_N_FIRST_AUDITS: Final = 5
#: Number of instances after which new bets begin.
_BET_INTERVAL: Final = 250
#: Smallest probability with which an audit counts. Devices are not trusted, and the weight of an
#: audit is 1 / p.
_MIN_PROBABILITY: Final = 1e-3
#: Tolerated excess of the share of disagreement over its value on validation rows.
_TOLERANCE: Final = 0.01


def disagreement_bound(manifest: Manifest) -> float | None:
    """Compute the largest share of disagreement that a manifest promises.

    The result is None if the manifest does not contain the agreement on validation rows.
    """
    agreement = manifest.active_point.agreement
    # the test needs a bound below 1
    return None if agreement is None else min(1.0 - agreement + _TOLERANCE, 0.99)


class DisagreementTest:
    """Sequential test of the hypothesis that the share of disagreement is at most `bound`.

    The `bound` is above 0 and below 1.

    Attributes
    ----------
    n_instances : float
        Number of offloaded instances, and estimated number of the devices' own answers.
    n_audits : int
        Number of audits.
    n_instances_at_alarm : int or None
        Number of instances when the alarm was raised.

    Examples
    --------
    >>> test = DisagreementTest(0.01)
    >>> for i in range(100):
    ...     test.offload(10)
    ...     test.audit(disagrees=i % 3 == 0, probability=0.025)
    >>> test.has_alarm, test.n_instances
    (True, 5000.0)
    """

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.n_instances = 0.0
        self.n_audits = 0
        self.n_instances_at_alarm: int | None = None
        self._weighted_sum = 0.0
        self._largest_seen = 0.0
        self._smallest_seen = 1.0
        self._smallest_probability = 1.0
        self._bet_values = [0.0] * len(_BETS)
        self._n_bets = 0
        self._next_bet_at = 0.0

    @property
    def has_alarm(self) -> bool:
        """Whether the alarm was raised."""
        return self.n_instances_at_alarm is not None

    @property
    def evidence(self) -> float:
        """Value of one unit of money after betting against the bound."""
        return sum(self._bet_values) / len(self._bet_values) + 1.0 / (1 + self._n_bets)

    @property
    def estimate(self) -> float:
        """Estimated share of disagreement; NaN before the first instance."""
        return self._weighted_sum / self.n_instances if self.n_instances else math.nan

    def offload(self, n_instances: int) -> None:
        """Observe instances that the high-cost model answered."""
        self.n_instances += n_instances
        # a stake l is a share of the smallest probability, divided by the bound
        self._bet_values = [
            bet_value * (1.0 - bet * self._smallest_probability) ** n_instances
            for bet_value, bet in zip(self._bet_values, _BETS, strict=True)
        ]

    def audit(self, *, disagrees: bool, probability: float) -> None:
        """Observe an instance that was audited with a `probability` in (0, 1]."""
        self.n_audits += 1
        self.n_instances += 1.0 / probability
        self._weighted_sum += disagrees / probability
        gain = (disagrees - self.bound) * self._smallest_probability / (self.bound * probability)
        # a device with another share of audits may have a smaller probability than all before it
        self._bet_values = [
            bet_value * max(0.0, 1.0 + bet * gain)
            for bet_value, bet in zip(self._bet_values, _BETS, strict=True)
        ]
        if not self.has_alarm and self.evidence >= 1.0 / _LEVEL:
            self.n_instances_at_alarm = round(self.n_instances)
        self._largest_seen = max(probability, self._largest_seen)
        self._smallest_seen = min(probability, self._smallest_seen)
        self._smallest_probability = min(
            self._smallest_seen,
            max(_SHARE_OF_MEAN * self._smallest_seen, _SHARE_OF_LARGEST * self._largest_seen),
        )
        if self.n_audits >= _N_FIRST_AUDITS and self.n_instances >= self._next_bet_at:
            # the j-th bets begin with 1 / (j (j + 1)) units of money, which sum to 1 over j
            self._n_bets += 1
            new_money = 1.0 / (self._n_bets * (self._n_bets + 1))
            self._bet_values = [bet_value + new_money for bet_value in self._bet_values]
            self._next_bet_at = self.n_instances + _BET_INTERVAL


@dataclass(slots=True)
class _ModelAudits:
    """Audits of one model: its test, and counts."""

    test: DisagreementTest | None
    #: Number of offloaded instances since the latest audit, which the test has not observed yet.
    n_offloaded: int = 0
    n_audits: int = 0
    n_disagreed: int = 0


def _log_alarm(model: ModelKey, test: DisagreementTest) -> None:
    _LOG.warning(
        "audit: devices' answers differ for about %.3g of the instances from those of %s %s, "
        "more than the bound of %.3g",
        test.estimate,
        *model,
        test.bound,
    )


class FleetAudit:
    """Audits of a fleet's answers with one test for each model and version; thread-safe.

    `on_alarm` is called once for each model that raises an alarm, with the model and its test.
    """

    def __init__(self, on_alarm: Callable[[ModelKey, DisagreementTest], None] = _log_alarm) -> None:
        self._on_alarm = on_alarm
        self._audits_by_model: dict[ModelKey, _ModelAudits] = {}
        self._lock = threading.Lock()

    def offload(self, model: ModelKey, n_instances: int) -> None:
        """Observe instances that the high-cost model answered, of devices with or without audits.

        They count once a device has sent an audit.
        """
        model_audits = self._audits_by_model.get(model)
        if model_audits is not None:
            with self._lock:
                model_audits.n_offloaded += n_instances

    def observe(
        self, model: ModelKey, mark: AuditMark, class_index: int, bound: float | None
    ) -> None:
        """Observe an audit of a device's answer, and the high-cost model's answer.

        Without a `bound` on the share of disagreement, audits are counted but not tested.
        """
        if mark.probability < _MIN_PROBABILITY:
            return
        disagrees = mark.class_index != class_index
        with self._lock:
            if model not in self._audits_by_model:
                test = None if bound is None else DisagreementTest(bound)
                self._audits_by_model[model] = _ModelAudits(test)
            model_audits = self._audits_by_model[model]
            model_audits.n_audits += 1
            model_audits.n_disagreed += disagrees
            test = model_audits.test
            if test is None:
                return
            had_alarm = test.has_alarm
            test.offload(model_audits.n_offloaded)
            model_audits.n_offloaded = 0
            test.audit(disagrees=disagrees, probability=mark.probability)
            is_first_alarm = test.has_alarm and not had_alarm
        if is_first_alarm:
            self._on_alarm(model, test)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each model, by ``NAME/VERSION``.

        ``audits`` and ``disagreed`` are counts. Models with a test also have ``evidence`` and
        ``alarm``.
        """
        with self._lock:
            return {
                "/".join(model): _audit_counts(model_audits)
                for model, model_audits in self._audits_by_model.items()
            }


def _audit_counts(model_audits: _ModelAudits) -> dict[str, Any]:
    audit_counts: dict[str, Any] = {
        "audits": model_audits.n_audits,
        "disagreed": model_audits.n_disagreed,
    }
    test = model_audits.test
    if test is not None:
        audit_counts |= {"evidence": test.evidence, "alarm": test.has_alarm}
    return audit_counts
