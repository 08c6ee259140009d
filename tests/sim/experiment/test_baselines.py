import dataclasses
import itertools

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.experiment.baselines import (
    REQUESTS,
    fill,
    make_baselines,
    oracle,
    row_weights,
    sampled,
)
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.answers import REASON
from gatewise_sim.fleet.estimate.sampling import choose_plan
from gatewise_sim.fleet.routes import NO_LABEL
from gatewise_sim.fleet.run import simulate_fleet
from tests.support.routes import make_routes

SETTINGS = Scenario(devices=20, seconds=600.0, link="none", deadline_ms=1e6).settings()


@pytest.fixture
def routes():
    """Twelve rows: what device and cloud say, and how sure the device is, differ at random."""
    rng = np.random.default_rng(3)
    routes = make_routes(12, hard=4)
    return dataclasses.replace(
        routes,
        local_label=rng.integers(0, 2, 12),
        cloud_label=rng.integers(0, 2, 12),
        confidence=rng.random(12).astype(np.float32),
    )


def right(routes, mask) -> int:
    return int((routes.choose(mask).label == routes.truth).sum())


def test_the_oracle_is_never_worse_than_any_choice_of_rows(routes):
    best = right(routes, oracle(routes))
    size = int(oracle(routes).sum())
    assert 0 < size < 12
    for chosen in itertools.product([False, True], repeat=12):
        assert right(routes, np.array(chosen)) <= best
    fewer = [m for m in itertools.product([False, True], repeat=12) if sum(m) < size]
    assert max(right(routes, np.array(m)) for m in fewer) < best


def test_all_but_the_oracle_send_at_the_systems_rate(routes):
    legs = {leg.key: leg for leg in make_baselines(routes, SETTINGS)}
    assert list(legs) == ["edge_only", "cloud_only", "confidence", "random", "oracle"]
    assert legs["confidence"].routes.offload.sum() == routes.offload.sum() == 4
    assert legs["random"].routes.share == pytest.approx(4 / 12)
    assert legs["edge_only"].settings.policy == "edge-only"
    assert legs["cloud_only"].settings.policy == "cloud-only"
    # the least sure are those that are sent, first where the device has nothing to say
    least = np.argsort(routes.confidence)[:4]
    assert set(np.flatnonzero(legs["confidence"].routes.offload)) == set(least)
    confidence = np.where(routes.confidence == routes.confidence.max(), np.nan, routes.confidence)
    unsure = make_baselines(dataclasses.replace(routes, confidence=confidence), SETTINGS)[2]
    assert unsure.routes.offload[np.isnan(confidence)].all()
    # a policy of one's own has a rate of its own
    assert make_baselines(routes, SETTINGS, rate=0.5)[3].routes.share == pytest.approx(0.5)


def test_on_the_very_instances_the_rates_are_as_near_as_rows_allow(routes):
    weights = row_weights(routes, SETTINGS, whole=True)
    run = simulate_fleet(routes, SETTINGS)
    assert weights.tolist() == np.bincount(run.answers.row, minlength=12).tolist()
    sent = weights[routes.offload].sum()
    for leg in make_baselines(routes, SETTINGS, weights=weights):
        if leg.key in ("confidence", "random"):
            answers = simulate_fleet(leg.routes, leg.settings).answers
            asked = int((answers.payload_up > 0).sum())
            assert abs(asked - sent) <= (weights.max() / 2 if leg.key == "confidence" else 1)
            assert (answers.time == run.answers.time).all()
            assert (answers.row == run.answers.row).all()


def test_chance_has_the_seed_and_draws_among_instances(routes):
    def sent(seed):
        settings = dataclasses.replace(SETTINGS, seed=seed)
        legs = {leg.key: leg for leg in make_baselines(routes, settings)}
        answers = simulate_fleet(legs["random"].routes, settings).answers
        return answers.row[answers.payload_up > 0].tolist(), answers

    rows, answers = sent(1)
    assert rows == sent(1)[0]
    assert rows != sent(2)[0]
    for row in set(rows):  # the same row now here, now there
        asked = answers.payload_up[answers.row == row] > 0
        assert 0 < asked.sum() < len(asked)
    assert set(answers.reason.tolist()) == {REASON["stopped"], REASON["offloaded"]}


def test_what_cannot_be_asked_about_is_not_sent_by_chance(routes):
    cloud = routes.cloud_label.copy()
    cloud[:6] = NO_LABEL
    for leg in make_baselines(dataclasses.replace(routes, cloud_label=cloud), SETTINGS):
        if leg.key in ("confidence", "oracle"):
            assert not leg.routes.offload[:6].any()
    some = dataclasses.replace(routes, cloud_label=cloud).by_chance(1.0)
    answers = simulate_fleet(some, SETTINGS).answers
    assert ((answers.payload_up > 0) == (answers.row >= 6)).all()
    assert some.share == 0.5
    with pytest.raises(InputError, match=r"chance is 1\.5"):
        routes.by_chance(1.5)


def test_without_a_cloud_or_a_truth_there_is_less_to_compare(routes):
    alone = dataclasses.replace(routes, plan=dataclasses.replace(routes.plan, has_cloud=False))
    assert [leg.key for leg in make_baselines(alone, SETTINGS)] == ["edge_only"]
    assert "oracle" not in [leg.key for leg in make_baselines(routes, SETTINGS, labelled=False)]


def test_fill_takes_in_order_and_stops_nearest_to_the_rate():
    weight = np.array([1.0, 5.0, 2.0, 2.0])
    assert fill(np.array([1, 0, 2, 3]), weight, 0.45).tolist() == [False, True, False, False]
    assert fill(np.array([0, 2, 3, 1]), weight, 0.45).tolist() == [True, False, True, True]
    assert not fill(np.array([1]), weight, 0.1).any()
    assert fill(np.arange(4), weight, 1.0).all()


@pytest.mark.parametrize(
    ("mix", "workload", "shares"),
    [
        ("steps,0s=3/1", "poisson:1/s", (0.75, 0.25)),
        ("linear,0s=1/0,1000s=0/1", "poisson:1/s", (0.5, 0.5)),
        # all of a day: where the mix is even, the rate's swing does not matter
        ("steps,0s=1/1", "diurnal:1/s:ratio=3", (0.5, 0.5)),
    ],
)
def test_a_class_mix_weighs_the_rows(mix, workload, shares):
    routes = dataclasses.replace(make_routes(10), truth=np.array([0] * 8 + [1] * 2))
    settings = Scenario(mix=mix, workload=workload, seconds=1000.0).settings(routes.truth)
    weights = row_weights(routes, settings, whole=False)
    found = np.array([weights[:8].sum(), weights[8:].sum()]) / weights.sum()
    assert found == pytest.approx(shares, rel=1e-6)


def test_a_trace_weighs_the_rows(tmp_path):
    (tmp_path / "trace.csv").write_text("time,row\n0,3\n1,3\n2,0\n")
    settings = Scenario(devices=1, workload=f"replay:{tmp_path}/trace.csv").settings()
    weights = row_weights(make_routes(5), settings, whole=True)
    assert weights.tolist() == [1, 0, 0, 2, 0]
    assert row_weights(make_routes(5), Scenario().settings(), whole=False) is None


# -- a huge fleet's baselines ---------------------------------------------------------------

HUGE = Scenario(
    devices=1_000_000, workers=20, seconds=86_400.0, outages="cloud:12:00-12:10"
).settings()


def requests(chosen, share) -> float:
    return chosen.stepped * chosen.devices / 60.0 * share


def test_a_fleet_that_always_asks_is_stepped_in_a_smaller_part():
    routes = make_routes(100, 7)
    settings = dataclasses.replace(HUGE, policy="cloud-only")
    usual, found = choose_plan(routes, settings), sampled(routes, settings)
    assert requests(usual, 1.0) > 3 * REQUESTS
    assert found.workers == 2
    # the load of each worker, and the time, are as they were
    assert found.devices * 20 == 1_000_000 * found.workers
    assert found.windows == usual.windows
    assert "100000 of 1000000 devices and 2 of 20 workers" in str(found)


def test_no_more_is_left_out_than_must_be():
    routes, settings, most = make_routes(100, 100), HUGE, 3_500_000
    assert sampled(routes, Scenario(devices=10).settings()).whole
    usual = choose_plan(routes, settings)
    found = sampled(routes, settings, requests=most)
    assert 2 <= found.workers < usual.workers
    assert requests(found, 1.0) <= most
    assert requests(found, 1.0) * (found.workers + 1) / found.workers > most


def test_workers_that_go_down_are_whole_workers():
    scenario = Scenario(
        devices=1_000_000, workers=20, seconds=86_400.0, outages="workers:5:12:00-12:10"
    )
    settings, routes = scenario.settings(), make_routes(100, 100)
    found = sampled(routes, settings, requests=1)
    assert found.workers == 4  # a quarter of which is one
