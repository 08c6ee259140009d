import dataclasses

import pytest

from gatewise_sim.experiment.lighter import REQUESTS, lighter, sampled
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.estimate.sampling import plan

HUGE = Scenario(
    devices=1_000_000, workers=20, seconds=86_400.0, outages="cloud:12:00-12:10"
).settings()


def requests(chosen, share) -> float:
    return chosen.stepped * chosen.devices / 60.0 * share


def test_a_fleet_that_always_asks_is_stepped_in_a_smaller_part(made_up):
    routes = made_up(100, 7)
    settings = dataclasses.replace(HUGE, policy="cloud-only")
    usual, found = plan(routes, settings), sampled(routes, settings)
    assert requests(usual, 1.0) > 3 * REQUESTS
    assert found.workers == 2
    # the load of each worker, and the time, are as they were
    assert found.devices * 20 == 1_000_000 * found.workers
    assert found.windows == usual.windows
    assert "100000 of 1000000 devices and 2 of 20 workers" in str(found)


def test_what_is_little_enough_stays(made_up):
    routes = made_up(100, 7)
    usual = plan(routes, HUGE)
    assert 1e5 < requests(usual, 0.07) < REQUESTS
    assert lighter(usual, routes, HUGE) == usual
    small = Scenario(devices=10).settings()
    assert sampled(routes, small).whole
    edge = dataclasses.replace(HUGE, policy="edge-only")
    assert sampled(routes, edge) == plan(routes, edge)


@pytest.mark.parametrize("most", [2_500_000, 3_500_000, 4_500_000])
def test_no_more_is_left_out_than_must_be(made_up, most):
    routes, settings = made_up(100, 100), HUGE
    usual = plan(routes, settings)
    found = lighter(usual, routes, settings, requests=most)
    assert 2 <= found.workers < usual.workers
    assert requests(found, 1.0) <= most
    assert requests(found, 1.0) * (found.workers + 1) / found.workers > most


def test_workers_that_go_down_are_whole_workers(made_up):
    scenario = Scenario(
        devices=1_000_000, workers=20, seconds=86_400.0, outages="workers:5:12:00-12:10"
    )
    settings, routes = scenario.settings(), made_up(100, 100)
    found = lighter(plan(routes, settings), routes, settings, requests=1)
    assert found.workers == 4  # a quarter of which is one
