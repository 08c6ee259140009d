"""Three tiers from the device's side: one request, and an answer from whichever stage gave it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise.costs import CloudPrices
from gatewise_edge.device.device import Device
from gatewise_edge.device.plan import StagePlan
from gatewise_edge.link import wire
from tests.support.small_bundle import FakeLink, answer_to, cloud_says

EASY = [1.0, 0, 0, 0, 0, 0]
MIDDLING = [0.1, 0, -1.0, 0, 1.0, 0]  # stage 1, on the gateway, is sure: no
HARD = [0.1, 0, 0.1, 0, -1.0, 0]  # only the cloud is
PRICES = CloudPrices(request=0.25, byte=0.001, evaluation=0.5, gateway=0.125)


@pytest.fixture
def tiered(make_bundle, bundle):
    """Make the small bundle with its second stage elsewhere."""

    def make(tier: str, **changes):
        first, second = bundle.manifest.every_stage
        stages = (first, replace(second, tier=tier))
        return make_bundle(tier, every_stage=stages, prices=PRICES, **changes)

    return make


def beyond(**changes):
    """Answer as a stage 1 elsewhere and the cloud behind it."""

    def behave(payload, receive):
        request = wire.decode_request(payload)
        labels, probabilities = cloud_says(request.X)
        margins = 4 * request.X[:, 1]
        sure = np.abs(margins) >= 1
        labels = np.where(sure, margins > 0, labels)
        exits = np.where(sure, 1, 2)
        answer = {"labels": labels, "probabilities": probabilities, "exits": exits}
        receive(wire.encode_response(answer_to(request, **(answer | changes))))

    return FakeLink(behave)


@pytest.mark.parametrize(("tier", "reason"), [("gateway", "gateway"), ("cloud", "offloaded")])
def test_stages_beyond_the_device_answer(tiered, tier, reason):
    bundle = tiered(tier)
    link = beyond()
    with Device(bundle, link=link) as device:
        here, there, cloud = (device.answer(row) for row in (EASY, MIDDLING, HARD))
    costs = bundle.manifest.exit_costs()
    assert (here.route, here.stage, here.reason, here.cost) == ("edge", 0, "stopped", costs[0])
    assert (there.route, there.stage, there.reason) == ("cloud", 1, reason)
    assert (there.label, there.cost) == ("no", pytest.approx(costs[1]))
    assert (cloud.route, cloud.stage, cloud.reason) == ("cloud", 2, "offloaded")
    assert cloud.cost == pytest.approx(costs[2])
    # One request for all that is beyond: a and what e and c cost, bought on leaving.
    assert there.acquired == cloud.acquired == (0, 1, 2, 4)
    assert len(link.sent) == 2
    assert {wire.decode_request(payload).X.shape for payload in link.sent} == {(1, 3)}


def test_the_request_carries_what_any_stage_beyond_reads(tiered):
    plan = StagePlan.from_manifest(tiered("gateway").manifest)
    assert (plan.n_stages, plan.n_here) == (2, 1)
    assert plan.stage_inputs.tolist() == [0, 1]
    assert plan.request_inputs.tolist() == [0, 2, 4]


def test_many_rows_of_one_message_end_at_different_stages(tiered):
    with Device(tiered("gateway"), link=beyond()) as device:
        answers = device.answer_many([HARD, MIDDLING, EASY, MIDDLING, HARD])
        assert device.counters["sent"] == 1
    assert [a.stage for a in answers] == [2, 1, 0, 1, 2]
    assert [a.label for a in answers] == ["no", "no", "yes", "no", "no"]


def test_without_the_gateway_the_devices_own_stages_answer(tiered):
    bundle = tiered("gateway")
    with Device(bundle) as device:
        answer = device.answer(MIDDLING)
        # Stage 1 is not run here: c was not bought.
        assert (answer.route, answer.stage, answer.reason) == ("fallback", 0, "no-link")
        assert answer.acquired == (0, 1)
    with Device(bundle, policy="edge-only") as device:
        answer = device.answer(MIDDLING)
        assert (answer.route, answer.stage, answer.reason) == ("edge", 0, "edge-only")


@pytest.mark.parametrize(("stages", "taken"), [("refused", False), ("allowed", True)])
def test_missing_values_go_up_only_if_all_beyond_take_them(tiered, stages, taken):
    bundle = tiered("gateway", missing={"stages": stages, "cloud": "allowed"})
    assert StagePlan.from_manifest(bundle.manifest).cloud_takes_nan == taken


@pytest.mark.parametrize("exits", [[0], [3]])
def test_a_stage_that_cannot_have_answered_is_not_believed(tiered, exits):
    with Device(tiered("gateway"), link=beyond(exits=exits)) as device:
        answer = device.answer(HARD)
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "cloud:stage", 0)


def test_a_response_without_exits_is_the_high_cost_models(tiered):
    with Device(tiered("gateway"), link=beyond(exits=None)) as device:
        answer = device.answer(HARD)
    assert (answer.route, answer.stage) == ("cloud", 2)


def test_the_gate_is_the_last_stage_here(tiered):
    with Device(tiered("gateway"), link=beyond()) as device:
        for _ in range(400):
            device.answer(HARD)
        # How many should leave the device is not in the manifest: no alarm of nothing.
        assert device.counters["drift_alarms"] == 0
