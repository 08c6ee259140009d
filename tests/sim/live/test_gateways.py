"""Live gateways: brokers, gateways, cloud and devices as processes decide as virtual time says."""

import pytest

from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_sim.fleet.answers import REASON
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from tests.sim.live.runs import CLOUD, assert_same, run, settings

pytestmark = pytest.mark.slow


def test_live_gateways_decide_as_virtual_ones(tiered, nothing_left):
    chosen = settings(
        devices=6, workload="poisson:2/s", gateways=2, uplink=PROFILES["4g"], link=PROFILES["wifi"]
    )
    live = run(tiered, chosen)
    routes = Routes.from_bundle(tiered.bundle, tiered.rows, tiered.truth)
    virtual = simulate_fleet(routes, chosen)
    assert live.troubles == []
    assert live.lost == 0
    assert_same(live.answers, virtual.answers)
    for there, foreseen in zip(live.gateways, virtual.gateways, strict=True):
        assert there["forwarded"] == foreseen["forwarded"]
        assert there["answered"] == foreseen["answered"]
    # Both ways are waited for, the shorter by jitter.
    up = live.answers.reason == REASON["offloaded"]
    assert live.answers.latency_ms[up].min() > PROFILES["4g"].rtt_ms - PROFILES["4g"].jitter_ms


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_killed_gateways_come_back(tiered, nothing_left):
    live = run(
        tiered,
        settings(
            devices=4,
            gateways=2,
            seconds=12.0,
            workload="periodic:100ms",
            deadline_ms=600.0,
            outages=Outages.parse("gateway:+2s-+5s"),
        ),
    )
    assert live.lost == 0
    assert live.troubles == []
    assert [(fault["what"], fault["up"]) for fault in live.faults] == [
        ("gateway", False),
        ("gateway", True),
    ]
    assert [each["restarts"] for each in live.gateways] == [1, 1]
    fell, back = (fault["at"] for fault in live.faults)
    answers = live.answers
    # On a busy machine an instance begins late and is answered within its deadline after that.
    ends = answers.time + live.behind_ms["max"] / 1000.0 + 0.6
    during = (answers.time > fell) & (ends < 5.0)
    assert during.any()
    assert not (answers.route[during] == CLOUD).any()
    assert (answers.route[answers.time > back] == CLOUD).any()
