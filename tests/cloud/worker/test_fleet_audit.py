"""Sequential test of audits: false alarms are rare, and a loss of agreement is detected."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_cloud.worker.fleet_audit import DisagreementTest, FleetAudit
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.link.messages import AuditMark


@given(
    bound=st.floats(0.001, 0.5),
    probabilities=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=5),
)
def test_the_evidence_at_the_bound_is_a_martingale(bound, probabilities):
    """Average the evidence over all sequences of outcomes, weighted by their probabilities.

    The bound is the probability that an answer is wrong, and no answer is offloaded.
    """

    def begin():
        test = DisagreementTest(bound)
        for _ in range(6):
            test.audit(disagrees=False, probability=0.1)
        return test

    mean_evidence = 0.0
    for outcomes in itertools.product((None, True, False), repeat=len(probabilities)):
        test = begin()
        path_probability = 1.0
        for disagrees, probability in zip(outcomes, probabilities, strict=True):
            if disagrees is None:
                path_probability *= 1.0 - probability  # an answer that is not audited
            else:
                path_probability *= probability * (bound if disagrees else 1.0 - bound)
                test.audit(disagrees=disagrees, probability=probability)
        mean_evidence += path_probability * test.evidence
    assert mean_evidence == pytest.approx(begin().evidence, rel=1e-9)


@given(st.lists(st.integers(0, 700), max_size=8))
def test_the_evidence_does_not_depend_on_the_portions_of_offloads(portions):
    test_in_one, test_in_portions = DisagreementTest(0.03), DisagreementTest(0.03)
    for test in (test_in_one, test_in_portions):
        for _ in range(10):
            test.audit(disagrees=False, probability=0.1)
    evidence_before = test_in_one.evidence
    test_in_one.offload(sum(portions))
    for n_instances in portions:
        test_in_portions.offload(n_instances)
    assert test_in_portions.n_instances == test_in_one.n_instances
    assert test_in_portions.evidence == pytest.approx(test_in_one.evidence, rel=1e-9)
    assert (test_in_one.evidence < evidence_before) == any(portions)


@dataclass(frozen=True)
class Stream:
    """Stream of instances with errors mostly in the least certain tenth."""

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
        for instance in range(n_instances):
            if not is_local[instance]:
                test.offload(1)
                continue
            probability = sampler.record_confidence(scores[instance])
            if draws[instance] < probability:
                test.audit(disagrees=bool(disagrees[instance]), probability=probability)
                if test.has_alarm:
                    return instance + 1
        return n_instances + 1


@pytest.mark.slow
def test_at_most_one_in_twenty_streams_at_the_bound_raises_an_alarm():
    """500 streams of 400 audits with a rate equal to the bound; 2 % are audited."""
    rng = np.random.default_rng(7)
    n_alarms = 0
    for _ in range(500):
        test = DisagreementTest(0.02)
        for disagrees in rng.random(400) < 0.02:
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


def test_the_first_audits_of_a_large_fleet_raise_no_alarm():
    """2,000 devices answer 10 instances each, and most of them send no audit."""
    rng = np.random.default_rng(2)
    test = DisagreementTest(0.02)
    audited_answers = rng.random(20_000) < 0.05
    for disagrees in rng.random(audited_answers.sum()) < 0.015:
        test.audit(disagrees=bool(disagrees), probability=0.05)
    assert test.n_audits > 900
    assert not test.has_alarm
    assert test.estimate == pytest.approx(0.015, abs=0.005)


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
        fleet_audit.observe(("m", "1"), AuditMark(device_class, 0.1), 1, 0.05)
        fleet_audit.offload(("m", "1"), 2)
        fleet_audit.offload(("without audits", "1"), 2)
    counts = fleet_audit.snapshot()["m/1"]
    assert (counts["audits"], counts["alarm"]) == (300, has_alarm)
    assert counts["disagreed"] == 300 * has_alarm
    assert len(caplog.records) == has_alarm
    # This probability is too small to count.
    fleet_audit.observe(("m", "1"), AuditMark(0, 1e-6), 1, 0.05)
    assert fleet_audit.snapshot()["m/1"] == counts


def test_audits_without_a_bound_are_only_counted():
    fleet_audit = FleetAudit()
    fleet_audit.observe(("m", "1"), AuditMark(0, 0.1), 1, None)
    fleet_audit.observe(("m", "1"), AuditMark(2, 0.1), 2, None)
    assert fleet_audit.snapshot() == {"m/1": {"audits": 2, "disagreed": 1}}
