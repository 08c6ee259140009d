"""Gateways in virtual time: what they answer and send on, and what they do without a cloud."""

from dataclasses import replace

import numpy as np
import pytest

from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.fleet.answers import REASON, ROUTES
from gatewise_sim.fleet.estimate.sampling import choose_plan, window_settings
from gatewise_sim.fleet.messages import publish_bytes
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime

pytestmark = pytest.mark.slow  # fleets are simulated

EDGE, CLOUD, FALLBACK, ERROR = range(len(ROUTES))
NAME = "0" * 8


@pytest.fixture(scope="module")
def routes(tiered) -> Routes:
    return Routes.from_bundle(tiered.bundle, tiered.rows, tiered.truth)


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 6,
        "seconds": 60.0,
        "gateways": 2,
        "service": ServiceTime(0.010, 0.0),
        "gateway_service": ServiceTime(0.002, 0.0),
        "broker_us": 0.0,
        "edge_ms": 0.0,
        "deadline_ms": 2000.0,
        "seed": 5,
    }
    if not {"in_turn", "arrivals"} & set(changes):
        common["workload"] = "poisson:1/s"
    return FleetSettings(**(common | changes))


def test_three_tiers_answer_and_cost_as_the_estimator_says(tiered, routes):
    assert routes.gateway is not None
    assert np.array_equal(routes.label, tiered.system.predict(tiered.rows))
    assert np.array_equal(routes.cost, tiered.system.cost(tiered.rows))
    run = simulate_fleet(routes, settings())
    answers = run.answers
    assert np.array_equal(answers.label, routes.label[answers.row])
    assert np.array_equal(answers.cost, routes.cost[answers.row])
    up = routes.gateway.goes_up[answers.row]
    sent = routes.offload[answers.row]
    assert np.array_equal(answers.reason == REASON["gateway"], sent & ~up)
    assert np.array_equal(answers.reason == REASON["offloaded"], sent & up)
    assert (sent & up).any()
    assert (sent & ~up).any()
    for g, counts in enumerate(run.gateways):  # each serves its own devices
        mine = sent & (answers.device % 2 == g)
        assert counts["answered"] == np.count_nonzero(mine)
        assert counts["forwarded"] == np.count_nonzero(mine & up)
        assert counts["stood_in"] == 0
    assert run.workers[0]["answered"] == np.count_nonzero(sent & up)


def test_latency_is_the_sum_of_its_parts(routes):
    """Link, gateway, uplink, worker and back, with nobody else on the way."""
    gateway = routes.gateway
    sizes = routes.sizes
    for goes_up in (False, True):
        row = int(np.flatnonzero(routes.offload & (gateway.goes_up == goes_up))[0])
        run = simulate_fleet(
            routes,
            settings(
                devices=1,
                in_turn=[[row]],
                gateways=1,
                link=LinkProfile("near", rtt_ms=10, up_kbps=64, down_kbps=64),
                uplink=LinkProfile("far", rtt_ms=100, up_kbps=32, down_kbps=32),
            ),
        )
        worker_us = round(1000 * run.answers.cloud_ms[0])
        assert worker_us >= 1999
        up = publish_bytes(request_topic(NAME), sizes.request(2000))
        down = publish_bytes(response_topic(NAME), sizes.response(worker_us))
        parts = 10.0 + (up + down) * 8 / 64 + 2.0
        if goes_up:
            up = publish_bytes(request_topic(NAME), gateway.sizes.request(1600))
            down = publish_bytes(response_topic(NAME), gateway.sizes.response(10_000))
            parts += 100.0 + (up + down) * 8 / 32 + 10.0
        assert run.answers.latency_ms == pytest.approx([parts], abs=1e-3)


def test_the_last_gateway_stage_answers_for_a_cloud_that_is_down(routes):
    run = simulate_fleet(routes, settings(outages=Outages.parse("cloud:+0s-+90s")))
    answers, gateway = run.answers, routes.gateway
    sent = routes.offload[answers.row]
    up = sent & gateway.goes_up[answers.row]
    assert np.array_equal(answers.stood_in, up)
    assert (answers.reason[sent] == REASON["gateway"]).all()
    assert np.array_equal(answers.label[sent], gateway.label[answers.row[sent]])
    assert (answers.stage[sent] == 1).all()
    paid = routes.request_cost[answers.row[sent]] + routes.plan.gateway_price
    assert np.array_equal(answers.cost[sent], paid)
    # What it keeps for the way back is a fifth of the time to live, at most 200 ms.
    assert answers.latency_ms[up] == pytest.approx(1800.0, abs=25.0)
    assert sum(each["stood_in"] for each in run.gateways) == np.count_nonzero(up)


def test_a_gateway_that_is_down_answers_nobody(routes):
    run = simulate_fleet(
        routes, settings(outages=Outages.parse("gateway:+20s-+30s"), breaker=False)
    )
    answers = run.answers
    sent = routes.offload[answers.row]
    during = sent & (answers.time >= 20.0) & (answers.time < 27.5)
    assert during.any()
    assert (answers.reason[during] == REASON["timeout"]).all()
    assert (answers.route[during] == FALLBACK).all()
    after = sent & (answers.time >= 30.0)
    assert (answers.route[after] == CLOUD).all()


def test_what_a_fallen_gateway_sent_up_answers_nobody(routes):
    """The cloud's answer comes when the gateway has been down and is back: it knows of nothing."""
    row = int(np.flatnonzero(routes.offload & routes.gateway.goes_up)[0])

    def once(devices, seconds, rng):
        return [(np.array([1.0]), np.array([0]), np.array([row]))]

    chosen = settings(
        devices=1,
        gateways=1,
        arrivals=once,
        service=ServiceTime(1.0, 0.0),
        outages=Outages.parse("gateway:+1200ms-+1900ms"),
        deadline_ms=1500.0,
        breaker=False,
    )
    run = simulate_fleet(routes, chosen)
    assert run.workers[0]["answered"] == 1
    assert run.gateways[0]["stood_in"] == 0
    assert run.answers.reason.tolist() == [REASON["timeout"]]
    unharmed = simulate_fleet(routes, replace(chosen, outages=Outages()))
    assert unharmed.answers.reason.tolist() == [REASON["offloaded"]]


def test_rows_that_share_a_request_go_up_alone(routes):
    """Of several rows in a message the gateway sends on those that none of its stages stops."""
    plain = simulate_fleet(routes, settings(workload="poisson:20/s", seconds=10.0))
    shared = simulate_fleet(
        routes, settings(workload="poisson:20/s", seconds=10.0, coalesce_ms=200.0)
    )
    assert np.array_equal(plain.answers.label, shared.answers.label)
    assert np.array_equal(plain.answers.reason, shared.answers.reason)
    assert shared.devices["sent"] < plain.devices["sent"] / 2
    assert sum(g["forwarded"] for g in shared.gateways) < sum(
        g["forwarded"] for g in plain.gateways
    )


def test_a_row_without_an_answer_there_fails_if_the_cloud_is_silent(routes):
    goes_up = routes.offload & routes.gateway.goes_up
    lost = replace(
        routes.gateway,
        stage=np.where(goes_up, NO_LABEL, routes.gateway.stage),
        label=np.where(goes_up, NO_LABEL, routes.gateway.label),
    )
    run = simulate_fleet(
        replace(routes, gateway=lost), settings(outages=Outages.parse("cloud:+0s-+90s"))
    )
    up = goes_up[run.answers.row]
    assert (run.answers.route[up] == FALLBACK).all()
    assert not run.answers.stood_in.any()


def test_a_part_of_a_fleet_keeps_its_devices_for_each_gateway(routes):
    whole = settings(
        devices=100_000, gateways=500, workers=100, seconds=86_400.0, workload="poisson:1/min"
    )
    plan = choose_plan(routes, whole)
    assert not plan.whole
    assert plan.devices < whole.devices
    part = window_settings(whole, plan, 0)
    assert part.devices / part.gateways == whole.devices / whole.gateways
