"""The sampler audits a share of the answers, and more of the uncertain ones."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.audit_sampler import AuditSampler


def test_uncertain_answers_are_audited_more_often():
    sampler = AuditSampler(0.01)
    confidences = np.random.default_rng(0).permutation(np.linspace(0.5, 1, 400))
    for confidence in confidences.tolist():
        sampler.record_confidence(confidence)
    probabilities = [
        sampler.record_confidence(confidence) for confidence in (0.5, 0.52, 0.56, 0.7, 1.0)
    ]
    assert probabilities == sorted(probabilities, reverse=True)
    # About ten times the share for the most uncertain answer, and a fifth for the most certain one.
    assert 0.08 < probabilities[0] < 0.11
    assert probabilities[-1] == pytest.approx(0.002, rel=0.01)


@pytest.mark.parametrize("mean_probability", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("n_distinct_confidences", [1, 3, 10**9])
def test_mean_probability_is_close_to_the_share(mean_probability, n_distinct_confidences):
    sampler = AuditSampler(mean_probability)
    draws = np.random.default_rng(1).random(4000)
    confidences = np.floor(n_distinct_confidences * draws) / n_distinct_confidences
    probabilities = [sampler.record_confidence(confidence) for confidence in confidences.tolist()]
    assert np.mean(probabilities) == pytest.approx(mean_probability, rel=0.05)
    # Each probability is at least a fifth of the share.
    assert min(probabilities) >= 0.2 * mean_probability


@pytest.mark.parametrize("mean_probability", [0.0, 1.1, float("nan")])
def test_share_out_of_range_is_refused(mean_probability):
    with pytest.raises(InputError, match="share"):
        AuditSampler(mean_probability)
