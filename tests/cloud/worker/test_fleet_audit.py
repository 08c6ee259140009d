"""The audit's test is a supermartingale, seldom alarms in vain, and finds a loss of agreement."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_cloud.worker.fleet_audit import DisagreementTest, FleetAudit
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.link.messages import AuditMark


@given(
    bound=st.floats(0.001, 0.5),
    probabilities=st.lists(st.floats(0.02, 1.0), min_size=1, max_size=6),
    before=st.integers(0, 600),
)
def test_the_expected_evidence_at_the_bound_is_that_of_before(bound, probabilities, before):
    """Enumerate every outcome: audited or not, agreed or not, each with its probability."""
    expected = 0.0
    for outcome in itertools.product((True, False), repeat=len(probabilities)):
        test, chance = DisagreementTest(bound), 1.0
        test.skip(before)
        for disagrees, p in zip(outcome, probabilities, strict=True):
            hit = min(bound, 1.0) * p  # audited with p, and disagrees with the bound's probability
            if disagrees:
                test.audit(disagrees=True, probability=p)
            else:
                test.skip()  # what an audit that agrees does to the evidence as well
            chance *= hit if disagrees else 1.0 - hit
        expected += chance * test.evidence
    start = DisagreementTest(bound)
    start.skip(before)
    assert expected == pytest.approx(start.evidence, rel=1e-9)


def test_an_audit_that_agrees_is_evidence_like_any_other_instance():
    one, other = DisagreementTest(0.02), DisagreementTest(0.02)
    one.audit(disagrees=False, probability=0.1)
    other.skip()
    assert one.evidence == other.evidence
    assert (one.audits, one.instances, other.audits, other.instances) == (1, 1, 0, 1)


@given(st.lists(st.integers(0, 700), max_size=8))
def test_instances_may_be_observed_in_any_portions(portions):
    whole, parts = DisagreementTest(0.03), DisagreementTest(0.03)
    whole.skip(sum(portions))
    for n in portions:
        parts.skip(n)
    assert parts.instances == whole.instances
    assert parts.evidence == pytest.approx(whole.evidence, rel=1e-9)


@dataclass(frozen=True)
class Stream:
    """Instances of which a share stops on the device; the least certain tenth has most errors."""

    rate: float
    share: float
    local: float = 0.8
    errors_in_tenth: float = 0.6

    def run(self, rng: np.random.Generator, test: DisagreementTest, n: int) -> int:
        """Instances until the alarm, at most `n`."""
        sampler = AuditSampler(self.share)
        local, score = rng.random(n) < self.local, rng.random(n)
        low = score < 0.1
        part = np.where(low, self.errors_in_tenth / 0.1, (1 - self.errors_in_tenth) / 0.9)
        disagrees = rng.random(n) < self.rate / self.local * part
        drawn = rng.random(n)
        for i in range(n):
            p = sampler.probability(score[i]) if local[i] else 0.0
            if drawn[i] < p:
                test.audit(disagrees=bool(disagrees[i]), probability=p)
                if test.alarm:
                    return i + 1
            else:
                test.skip()
        return n + 1


@pytest.mark.slow
def test_at_the_bound_at_most_one_stream_in_twenty_ever_alarms():
    """500 streams of 20,000 instances at the bound itself, the worst case; audits of 2 %."""
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(500):
        test = DisagreementTest(0.02)
        gaps = rng.geometric(0.02, size=400)
        for gap, disagrees in zip(gaps, rng.random(400) < 0.02, strict=True):
            test.skip(int(gap) - 1)
            test.audit(disagrees=bool(disagrees), probability=0.02)
        alarms += test.alarm
    assert alarms <= 25


@pytest.mark.slow
def test_a_loss_of_three_points_is_found():
    """Bound 1 %, loss 4 %: within 2,000 instances with 5 % audited, 400 audits with 2 %."""
    rng = np.random.default_rng(11)
    result = [Stream(0.04, 0.05).run(rng, DisagreementTest(0.01), 2000) for _ in range(100)]
    assert sum(n <= 2000 for n in result) >= 65
    counts = []
    for _ in range(20):
        test = DisagreementTest(0.01)
        Stream(0.04, 0.02).run(rng, test, 60_000)
        counts.append(test.audits if test.alarm else 10**9)
    assert sum(n <= 400 for n in counts) == 20


def test_a_loss_that_begins_late_is_found_as_well():
    rng = np.random.default_rng(3)
    test = DisagreementTest(0.02)
    stream = Stream(0.015, 0.1)
    assert stream.run(rng, test, 30_000) == 30_001
    assert replace(stream, rate=0.08).run(rng, test, 20_000) <= 5_000


def test_the_estimate_takes_back_the_unequal_probabilities():
    rng = np.random.default_rng(5)
    test = DisagreementTest(0.9)
    Stream(0.05, 0.1).run(rng, test, 60_000)
    assert test.estimate == pytest.approx(0.05, rel=0.2)
    assert test.audits / 60_000 == pytest.approx(0.8 * 0.1, rel=0.05)


@pytest.mark.parametrize("bound", [0.0, 1.0, -1.0, float("nan")])
def test_bounds_out_of_range_are_refused(bound):
    with pytest.raises(InputError, match="bound"):
        DisagreementTest(bound)


@pytest.mark.parametrize(("answered", "alarm"), [(1, False), (0, True)])
def test_audits_of_a_fleet_raise_one_alarm(answered, alarm, caplog):
    audits = FleetAudit()
    for _ in range(300):
        audits.observe(("m", "1"), AuditMark(answered, 0.1, 9), 1, 0.05)
    figures = audits.snapshot()["m 1"]
    assert (figures["audits"], figures["alarm"]) == (300, alarm)
    assert figures["by_class"] == {str(answered): [300, 300 * alarm]}
    assert len(caplog.records) == alarm
    audits.observe(("m", "1"), AuditMark(0, 1e-6, 0), 1, 0.05)  # too rare
    assert audits.snapshot()["m 1"] == figures


def test_audits_without_a_bound_are_counted_alone():
    audits = FleetAudit()
    audits.observe(("m", "1"), AuditMark(0, 0.1, 9), 1, None)
    audits.observe(("m", "1"), AuditMark(2, 0.1, 9), 2, None)
    by_class = {"0": [1, 1], "2": [1, 0]}
    assert audits.snapshot() == {"m 1": {"audits": 2, "disagreed": 1, "by_class": by_class}}
