"""Sequential test that a fleet's answers agree with the high-cost model as often as promised.

Devices send a random share of their own answers to the high-cost model to be audited. Let p be the
probability with which an instance is audited. Let ``X = 1/p`` if it was audited and the high-cost
model gave another answer, and X = 0 for all other instances, including offloaded ones. The mean of
X estimates the share of disagreement, which is the share of instances that the device and the
high-cost model answer differently. The weight 1/p corrects for the fact that devices audit doubtful
answers more often.

A bound b on that share is tested by betting (Waudby-Smith & Ramdas, "Estimating means of bounded
random variables by betting", 2023, section 4). Each factor ``1 + l (X - b)``, with l fixed before X
is observed, has a mean of at most 1 as long as the bound holds. New bets begin every few instances,
each with a part of one unit of money, so that a loss of agreement is detected soon after it begins.
The sum of the money is a test supermartingale. By Ville's inequality the probability that it ever
reaches ``1 / level`` is at most `level`, however long the test runs.

The test runs in the worker, because all devices together give evidence of a loss for which a single
device has too few instances.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gatewise_cloud.worker.batcher import ModelKey
from gatewise_edge.link.messages import AuditMark

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger(__name__)

#: Largest probability of a false alarm.
_LEVEL: Final = 0.05
#: Bets as shares of the largest allowed bet, 1 / bound. They suit weights 1 / p from 1 to 100. A
#: larger bet would win only if half of all answers were wrong, and these bets detect that soon.
_BETS: Final = tuple(0.5 / 3.0**k for k in range(2, 7))
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

    The `bound` lies between 0 and 1, and neither is allowed.

    Attributes
    ----------
    n_instances, n_audits, n_disagreed : int
        Number of observed instances, of audits, and of audits with another answer.
    weighted_sum : float
        Sum of X.
    n_instances_at_alarm : int or None
        Number of observed instances when the alarm was raised.

    Examples
    --------
    >>> test = DisagreementTest(0.01)
    >>> for i in range(100):
    ...     test.skip(49)
    ...     test.audit(disagrees=i % 3 == 0, probability=0.02)
    >>> test.has_alarm, test.n_instances, test.n_disagreed
    (True, 5000, 34)
    """

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.n_instances = 0
        self.n_audits = 0
        self.n_disagreed = 0
        self.n_instances_at_alarm: int | None = None
        self.weighted_sum = 0.0
        self._stakes = [bet / bound for bet in _BETS]
        self._bet_values = [0.0] * len(_BETS)
        self._n_bets = 0

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
        return self.weighted_sum / self.n_instances if self.n_instances else math.nan

    def skip(self, n_instances: int = 1) -> None:
        """Observe instances that were not audited, or that the high-cost model answered."""
        while n_instances > 0:
            n_to_next_bet = -self.n_instances % _BET_INTERVAL
            if n_to_next_bet == 0:
                # the j-th bets begin with 1 / (j (j + 1)) units of money, which sum to 1 over j
                self._n_bets += 1
                new_money = 1.0 / (self._n_bets * (self._n_bets + 1))
                self._bet_values = [bet_value + new_money for bet_value in self._bet_values]
                n_to_next_bet = _BET_INTERVAL
            n_skipped = min(n_instances, n_to_next_bet)
            # each skipped instance has X = 0, and its factor is 1 + l (0 - b)
            self._bet_values = [
                bet_value * (1.0 - stake * self.bound) ** n_skipped
                for bet_value, stake in zip(self._bet_values, self._stakes, strict=True)
            ]
            self.n_instances += n_skipped
            n_instances -= n_skipped

    def audit(self, *, disagrees: bool, probability: float) -> None:
        """Observe an instance that was audited with a `probability` in (0, 1]."""
        self.skip()
        self.n_audits += 1
        if not disagrees:
            return
        self.n_disagreed += 1
        self.weighted_sum += 1.0 / probability
        # skip() has multiplied by the factor for X = 0; replace it by the factor for X = 1 / p
        self._bet_values = [
            bet_value
            * (1.0 + stake * (1.0 / probability - self.bound))
            / (1.0 - stake * self.bound)
            for bet_value, stake in zip(self._bet_values, self._stakes, strict=True)
        ]
        if self.n_instances_at_alarm is None and self.evidence >= 1.0 / _LEVEL:
            self.n_instances_at_alarm = self.n_instances


@dataclass(slots=True)
class _ModelAudits:
    """Audits of one model: its test, and counts by the class that devices had answered."""

    test: DisagreementTest | None
    n_audits_by_class: Counter[int] = field(default_factory=Counter)
    n_disagreed_by_class: Counter[int] = field(default_factory=Counter)


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
            model_audits.n_audits_by_class[mark.class_index] += 1
            model_audits.n_disagreed_by_class[mark.class_index] += disagrees
            test = model_audits.test
            if test is None:
                return
            had_alarm = test.has_alarm
            test.skip(mark.n_skipped)
            test.audit(disagrees=disagrees, probability=mark.probability)
            is_first_alarm = test.has_alarm and not had_alarm
        if is_first_alarm:
            self._on_alarm(model, test)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each model, by ``NAME VERSION``.

        ``audits`` and ``disagreed`` are counts. ``by_class`` contains both counts for each class
        index that devices had answered. Models with a test also have ``evidence`` and ``alarm``.
        After an alarm, ``alarm_at`` is the number of instances that had been observed.
        """
        with self._lock:
            return {
                " ".join(model): _audit_counts(model_audits)
                for model, model_audits in self._audits_by_model.items()
            }


def _audit_counts(model_audits: _ModelAudits) -> dict[str, Any]:
    audit_counts: dict[str, Any] = {
        "audits": model_audits.n_audits_by_class.total(),
        "disagreed": model_audits.n_disagreed_by_class.total(),
        "by_class": {
            str(class_index): [count, model_audits.n_disagreed_by_class[class_index]]
            for class_index, count in sorted(model_audits.n_audits_by_class.items())
        },
    }
    test = model_audits.test
    if test is not None:
        audit_counts |= {"evidence": test.evidence, "alarm": test.has_alarm}
        if test.n_instances_at_alarm is not None:
            audit_counts["alarm_at"] = test.n_instances_at_alarm
    return audit_counts
