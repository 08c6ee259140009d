"""10,000 instances with a hung, dead or slow sensor have one outcome each."""

from __future__ import annotations

import pytest

from tests.edge.sensors.test_bad_sensors import NEEDED_FEATURES, answer_with_fault
from tests.support import small_bundle

bundle = small_bundle.bundle

N_INSTANCES = 10_000
DEADLINE_MS = 40.0
#: Largest share of instances with another outcome, because a busy machine delays good sensors.
MAX_STRAY_SHARE = 0.02
#: Outcomes of an instance that needs a failed sensor: an error if no stage has finished, the answer
#: of the cloud, which does not need b, or the answer of the last stage with all its features.
OUTCOMES_WITHOUT_FEATURE = {
    "a": {("error", "a")},
    "b": {("cloud", 2), ("error", "b")},
    "c": {("fallback", 0)},
    "e": {("fallback", 1)},
}
USUAL_OUTCOMES = (("edge", 0), ("edge", 1), ("cloud", 2))


@pytest.mark.slow
@pytest.mark.parametrize("faulty_feature", OUTCOMES_WITHOUT_FEATURE)
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_every_instance_is_answered_wherever_a_stage_has_its_features(
    bundle, faulty_feature, fault
):
    outcomes, _, hung_sensors = answer_with_fault(
        bundle, faulty_feature, fault, N_INSTANCES, DEADLINE_MS
    )
    n_strays = 0
    for needed_features, outcome_counts, usual_outcome in zip(
        NEEDED_FEATURES, outcomes, USUAL_OUTCOMES, strict=True
    ):
        expected = (
            OUTCOMES_WITHOUT_FEATURE[faulty_feature]
            if faulty_feature in needed_features
            else {usual_outcome}
        )
        n_strays += sum(
            count for outcome, count in outcome_counts.items() if outcome not in expected
        )
        # Only the instances that wait for b have no time left for the cloud.
        if fault != "slow" and faulty_feature == "b":
            n_strays += outcome_counts["error", "b"]
    assert n_strays <= MAX_STRAY_SHARE * N_INSTANCES, outcomes
    if fault == "hung":
        assert hung_sensors == (faulty_feature,)
