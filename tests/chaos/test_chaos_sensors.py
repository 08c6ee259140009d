"""10,000 instances beside each hung, dead and slow sensor: one outcome each."""

from __future__ import annotations

import pytest

from tests.edge.sensors.test_bad_sensors import NEEDS, run
from tests.support import small_bundle

bundle = small_bundle.bundle

INSTANCES = 10_000
DEADLINE_MS = 40.0
#: Share of the instances that a busy machine may make wait for a sensor that is well.
STRAYS = 0.02
#: Outcomes of an instance that needs a sensor that fails: an error where no stage has finished, the
#: answer of the cloud, which does without b, or of the last stage that has its features.
WITHOUT = {
    "a": {("error", "a")},
    "b": {("cloud", 2), ("error", "b")},
    "c": {("fallback", 0)},
    "e": {("fallback", 1)},
}
USUAL = (("edge", 0), ("edge", 1), ("cloud", 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("fault", ["hung", "dead", "slow"])
def test_every_instance_is_answered_wherever_a_stage_has_its_features(bundle, name, fault):
    outcomes, _, hung = run(bundle, name, fault, INSTANCES, DEADLINE_MS)
    strays = 0
    for needs, outcome, usual in zip(NEEDS, outcomes, USUAL, strict=True):
        expected = WITHOUT[name] if name in needs else {usual}
        strays += sum(count for end, count in outcome.items() if end not in expected)
        # An instance that waits for b itself has no time left for the cloud; later ones have.
        if fault != "slow" and name == "b":
            strays += outcome["error", "b"]
    assert strays <= STRAYS * INSTANCES, outcomes
    if fault == "hung":
        assert hung == (name,)
