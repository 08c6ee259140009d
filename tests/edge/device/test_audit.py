"""A share of the answers is audited, the least certain ones more often."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.audit import AuditSampler


def test_least_certain_answers_are_audited_more_often():
    sampler = AuditSampler(0.01)
    latest = np.random.default_rng(0).permutation(np.linspace(0.5, 1, 400))
    for confidence in latest.tolist():
        sampler.probability(confidence)
    found = [sampler.probability(confidence) for confidence in (0.5, 0.52, 0.56, 0.7, 1.0)]
    assert found == sorted(found, reverse=True)
    assert 0.08 < found[0] < 0.11
    assert found[-1] == pytest.approx(0.002, rel=0.01)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("distinct", [3, 10**9])
def test_the_share_is_the_mean_probability(share, distinct):
    """It is less where many confidences are equal."""
    sampler, rng = AuditSampler(share), np.random.default_rng(1)
    found = [
        sampler.probability(float(np.floor(distinct * c) / distinct)) for c in rng.random(4000)
    ]
    assert np.mean(found) == pytest.approx(share, rel=0.05) or distinct == 3
    assert share / 6 < np.mean(found) < 1.05 * share
    assert min(found) >= 0.2 * share


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_shares_out_of_range_are_refused(share):
    with pytest.raises(InputError, match="share"):
        AuditSampler(share)
