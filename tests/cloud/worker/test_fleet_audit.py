"""Sequential test of audits: false alarms are rare, and a loss of agreement is detected."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_cloud.worker.fleet_audit import DisagreementTest, FleetAudit
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.link.messages import AuditMark


@given(
    bound=st.floats(0.001, 0.5),
    probabilities=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=6),
    n_before=st.integers(0, 600),
)
def test_the_evidence_at_the_bound_is_a_martingale(bound, probabilities, n_before):
    """Average the evidence over all sequences of outcomes, weighted by their probabilities.

    The bound is the probability that an instance disagrees.
    """
    mean_evidence = 0.0
    for disagreements in itertools.product((True, False), repeat=len(probabilities)):
        test = DisagreementTest(bound)
        path_probability = 1.0
        test.skip(n_before)
        for disagrees, probability in zip(disagreements, probabilities, strict=True):
            # The instance is audited with the one probability and disagrees with the other.
            p_audited_disagreement = bound * probability
            if disagrees:
                test.audit(disagrees=True, probability=probability)
            else:
                test.skip()  # an audit that agrees changes the evidence equally
            path_probability *= (
                p_audited_disagreement if disagrees else 1.0 - p_audited_disagreement
            )
        mean_evidence += path_probability * test.evidence
    test_before = DisagreementTest(bound)
    test_before.skip(n_before)
    assert mean_evidence == pytest.approx(test_before.evidence, rel=1e-9)


def test_an_audit_that_agrees_changes_the_evidence_like_a_skipped_instance():
    test_with_audit, test_with_skip = DisagreementTest(0.02), DisagreementTest(0.02)
    test_with_audit.audit(disagrees=False, probability=0.1)
    test_with_skip.skip()
    assert test_with_audit.evidence == test_with_skip.evidence
    assert (test_with_audit.n_audits, test_with_audit.n_instances) == (1, 1)
    assert (test_with_skip.n_audits, test_with_skip.n_instances) == (0, 1)


@given(st.lists(st.integers(0, 700), max_size=8))
def test_the_evidence_does_not_depend_on_the_portions_of_instances(portions):
    test_in_one, test_in_portions = DisagreementTest(0.03), DisagreementTest(0.03)
    test_in_one.skip(sum(portions))
    for n_instances in portions:
        test_in_portions.skip(n_instances)
    assert test_in_portions.n_instances == test_in_one.n_instances
    assert test_in_portions.evidence == pytest.approx(test_in_one.evidence, rel=1e-9)


@dataclass(frozen=True)
class Stream:
    """Stream of instances whose errors occur mostly in the least certain tenth."""

    disagreement_rate: float
    audit_share: float
    local_share: float = 0.8
    error_share_in_tenth: float = 0.6

    def count_until_alarm(
        self, rng: np.random.Generator, test: DisagreementTest, n_instances: int
    ) -> int:
        """Test instances; return their number until the alarm, or one more without an alarm."""
        sampler = AuditSampler(self.audit_share)
        is_local = rng.random(n_instances) < self.local_share
        scores = rng.random(n_instances)
        # The errors in the least certain tenth and in the other nine tenths add up to the rate.
        error_factor = np.where(
            scores < 0.1, self.error_share_in_tenth / 0.1, (1 - self.error_share_in_tenth) / 0.9
        )
        disagrees = (
            rng.random(n_instances) < self.disagreement_rate / self.local_share * error_factor
        )
        draws = rng.random(n_instances)
        for i in range(n_instances):
            probability = sampler.record_confidence(scores[i]) if is_local[i] else 0.0
            if draws[i] < probability:
                test.audit(disagrees=bool(disagrees[i]), probability=probability)
                if test.has_alarm:
                    return i + 1
            else:
                test.skip()
        return n_instances + 1


@pytest.mark.slow
def test_at_most_one_in_twenty_streams_at_the_bound_raises_an_alarm():
    """500 streams of 20,000 instances with a rate equal to the bound; 2 % are audited."""
    rng = np.random.default_rng(7)
    n_alarms = 0
    for _ in range(500):
        test = DisagreementTest(0.02)
        gaps = rng.geometric(0.02, size=400)  # 400 audits among 20,000 instances
        for gap, disagrees in zip(gaps, rng.random(400) < 0.02, strict=True):
            test.skip(int(gap) - 1)
            test.audit(disagrees=bool(disagrees), probability=0.02)
        n_alarms += test.has_alarm
    assert n_alarms <= 25  # 5 % of the streams


@pytest.mark.slow
def test_a_loss_of_three_points_raises_an_alarm():
    """With bound 1 % and rate 4 %: within 2,000 instances or within 400 audits."""
    rng = np.random.default_rng(11)
    stream = Stream(disagreement_rate=0.04, audit_share=0.05)
    n_instances_until_alarm = [
        stream.count_until_alarm(rng, DisagreementTest(0.01), 2000) for _ in range(100)
    ]
    assert sum(n_instances <= 2000 for n_instances in n_instances_until_alarm) >= 65
    n_audits_until_alarm = []
    for _ in range(20):
        test = DisagreementTest(0.01)
        Stream(disagreement_rate=0.04, audit_share=0.02).count_until_alarm(rng, test, 60_000)
        n_audits_until_alarm.append(test.n_audits if test.has_alarm else np.inf)
    assert max(n_audits_until_alarm) <= 400


def test_a_loss_that_begins_late_raises_an_alarm():
    rng = np.random.default_rng(3)
    test = DisagreementTest(0.02)
    stream = Stream(disagreement_rate=0.015, audit_share=0.1)
    assert stream.count_until_alarm(rng, test, 30_000) == 30_001  # no alarm
    worse_stream = replace(stream, disagreement_rate=0.08)
    assert worse_stream.count_until_alarm(rng, test, 20_000) <= 5_000


def test_the_estimate_corrects_for_unequal_audit_probabilities():
    rng = np.random.default_rng(5)
    test = DisagreementTest(0.9)  # a bound that never raises an alarm
    Stream(disagreement_rate=0.05, audit_share=0.1).count_until_alarm(rng, test, 60_000)
    assert test.estimate == pytest.approx(0.05, rel=0.2)
    assert test.n_audits / 60_000 == pytest.approx(0.8 * 0.1, rel=0.05)  # of the local instances


@pytest.mark.parametrize(("device_class", "has_alarm"), [(1, False), (0, True)])
def test_audits_of_a_fleet_raise_one_alarm(device_class, has_alarm, caplog):
    fleet_audit = FleetAudit()
    for _ in range(300):
        fleet_audit.observe(("m", "1"), AuditMark(device_class, 0.1, 9), 1, 0.05)
    counts = fleet_audit.snapshot()["m 1"]
    assert (counts["audits"], counts["alarm"]) == (300, has_alarm)
    assert counts["by_class"] == {str(device_class): [300, 300 * has_alarm]}
    assert len(caplog.records) == has_alarm
    # This probability is too small to count.
    fleet_audit.observe(("m", "1"), AuditMark(0, 1e-6, 0), 1, 0.05)
    assert fleet_audit.snapshot()["m 1"] == counts


def test_audits_without_a_bound_are_only_counted():
    fleet_audit = FleetAudit()
    fleet_audit.observe(("m", "1"), AuditMark(0, 0.1, 9), 1, None)
    fleet_audit.observe(("m", "1"), AuditMark(2, 0.1, 9), 2, None)
    by_class = {"0": [1, 1], "2": [1, 0]}
    assert fleet_audit.snapshot() == {"m 1": {"audits": 2, "disagreed": 1, "by_class": by_class}}
