from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.estimate.sampling import LEAST_WORKERS, choose_plan, window_settings
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.fleet.workload.row_mix import RowMix
from tests.support.routes import make_routes

pytestmark = pytest.mark.slow  # fleets are simulated

DAY = 86_400.0
HARD = 5  # rows in a hundred


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 200,
        "seconds": DAY,
        "workload": "poisson:1/min",
        "link": LinkProfile("l", 60, 20, 50_000, 50_000, 0.001),
        "service": ServiceTime(0.010, 0.002),
        "primed": True,
    }
    return FleetSettings(**(common | changes))


@pytest.fixture(scope="module")
def routes():
    return make_routes(100, HARD)


def test_windows_of_time_stand_for_the_whole_day(routes):
    """Every figure lies near that of stepping all of it, and most within their intervals."""
    own = settings()
    whole = estimate_fleet(routes, own)
    few = choose_plan(routes, own, requests=4_000)
    assert whole.plan.whole
    assert "stepped whole" in str(whole.plan)
    assert not few.whole
    assert few.stepped < DAY / 3
    some = estimate_fleet(routes, own, sampling=few)
    assert some.instances == pytest.approx(whole.instances, rel=0.02)
    inside = []
    for name in ("accuracy", "offload_rate", "cost", "bytes_up", "bytes_down"):
        estimate, truth = some.means[name], whole.means[name].value
        assert estimate.value == pytest.approx(truth, rel=0.05)
        inside.append(estimate.low <= truth <= estimate.high)
    for name in ("offloaded_p50", "offloaded_p95"):
        estimate, truth = some.latency_ms[name], whole.latency_ms[name].value
        assert estimate.value == pytest.approx(truth, rel=0.05)
        inside.append(estimate.low <= truth <= estimate.high)
    assert sum(inside) >= 5
    assert some.utilisation == pytest.approx(whole.utilisation, rel=0.1)


@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say(routes):
    """95 %: of 60 runs at least 52 (52 or fewer has a probability of 1 %)."""
    held = 0
    for seed in range(60):
        own = settings(seconds=7200.0, policy="edge-only", seed=seed)
        some = choose_plan(routes, own, instances=6_000)
        assert not some.whole
        found = estimate_fleet(routes, own, sampling=some).means["accuracy"]
        held += found.low <= 1 - HARD / 100 <= found.high
    assert held >= 52


def test_an_outage_in_a_sampled_run_is_that_of_the_whole_run(routes):
    """Same times, same figures, from the bins around it."""
    down = Outages.parse("cloud:12:00-12:10")
    own = settings(devices=400, outages=down, workload="poisson:6/min", seconds=DAY)
    few = choose_plan(routes, own, requests=12_000)
    assert not few.whole
    (around,) = (w for w in few.windows if w.begin < DAY / 2 < w.end)
    assert around.weight == 1.0
    assert around.end > DAY / 2 + 600
    assert sum(w.stands_for for w in few.windows) == pytest.approx(DAY)
    found = estimate_fleet(routes, own, sampling=few)
    noon, ten_past = DAY / 2, DAY / 2 + 600
    hour = replace(own, seconds=3600.0, outages=Outages.parse("cloud:+30min-+40min"))
    whole = estimate_fleet(routes, hour)
    inside = [t for t in found.timeline if noon <= t["begin"] < ten_past]
    theirs = [t for t in whole.timeline if 1800 <= t["begin"] < 2400]
    assert len(inside) >= 8
    assert sum(t["end"] - t["begin"] for t in inside) == pytest.approx(600.0)
    for name in ("instances", "edge", "fallback"):  # two draws of a Poisson number
        mine, other = (sum(t[name] for t in every) for every in (inside, theirs))
        assert mine == pytest.approx(other, abs=5 * np.sqrt(2 * other)), name
    assert sum(t["cloud"] for t in inside) == sum(t["cloud"] for t in theirs) == 0
    for t in inside:
        assert t["accuracy"] == pytest.approx(t["edge_accuracy"])
    assert all(t["accuracy"] == 1.0 for t in found.timeline if t["begin"] > ten_past + 60)
    assert sum(t["instances"] for t in found.timeline) == pytest.approx(found.instances)
    assert found.timeline[0]["begin"] == 0.0
    assert found.timeline[-1]["end"] == DAY
    for before, after in pairwise(found.timeline):
        assert before["end"] == pytest.approx(after["begin"])
    mine, other = (e.devices["timeouts"] for e in (found, whole))
    assert mine == pytest.approx(other, abs=5 * np.sqrt(2 * other))


@pytest.mark.slow
def test_joules_of_windows_are_those_of_the_whole_run(routes):
    """With a tail of 12 s and a request every 15 s, half of the requests meet one: a window
    that did not look back far enough would take each first request for a lone one."""
    own = settings(workload="poisson:80/min", link=PROFILES["4g"], devices=40, seconds=20_000.0)
    few = choose_plan(routes, own, requests=6_000)
    assert all(w.warm >= min(11.576, w.begin) for w in few.windows)
    whole, some = (
        estimate_fleet(routes, own, sampling=chosen).means["radio_j"]
        for chosen in (choose_plan(routes, own, requests=10**9, instances=10**12), few)
    )
    assert some.value == pytest.approx(whole.value, rel=0.03)
    alone = HARD / 100 * (12.27 + 0.3)  # J, had every request a wake-up and a tail of its own
    assert whole.value < 0.8 * alone


def test_it_does_not_matter_how_many_processes_step(routes):
    own = settings(outages=Outages.parse("cloud:12:00-12:02"))
    few = choose_plan(routes, own, requests=3_000)
    assert few == choose_plan(routes, own, requests=3_000)
    alone, together = (estimate_fleet(routes, own, sampling=few, jobs=jobs) for jobs in (1, 2))
    assert asdict(alone) == asdict(together)


def test_a_part_of_the_fleet_carries_its_full_load(routes):
    """When time alone is not enough, devices and workers are sampled in proportion."""
    own = settings(devices=160_000, workers=16, seconds=7200.0)
    few = choose_plan(routes, own, requests=1_500, windows=4)
    assert (few.workers, few.devices) == (LEAST_WORKERS, 80_000)
    assert "80000 of 160000 devices and 8 of 16 workers" in str(few)
    found = estimate_fleet(routes, own, sampling=few)
    offered = 160_000 / 60 * HARD / 100 * 0.012 / 16  # of each worker's time, in runs of one
    assert found.utilisation == pytest.approx(offered, rel=0.05)
    assert found.instances == pytest.approx(160_000 / 60 * 7200, rel=0.01)


def test_a_window_has_its_own_time_of_day():
    """Rates and classes that change over the day are those of the window's time."""
    routes = make_routes(100, HARD)
    mix = RowMix.parse("steps,0s=1/0,12h=0/1", (np.arange(100) >= HARD).astype(int))
    own = settings(workload="diurnal:1/min:peak=18:00:ratio=9", mix=mix)
    few = choose_plan(routes, own, requests=4_000)
    counts = []
    for i, window in enumerate(few.windows):
        if window.begin < DAY / 2 < window.end:
            continue
        answers = simulate_fleet(routes, window_settings(own, few, i)).answers
        assert ((answers.row < HARD) == (window.begin < DAY / 2)).all()
        counts.append(len(answers) / (window.end - window.begin + window.warm))
    morning, evening = counts[len(counts) // 4], counts[3 * len(counts) // 4]
    assert evening > 5 * morning
    found = estimate_fleet(routes, own, sampling=few)
    assert found.instances == pytest.approx(200 * 1440, rel=0.03)


def test_devices_in_step_stay_in_step(routes):
    own = settings(workload="periodic:60s:aligned=yes")
    few = choose_plan(routes, own, requests=4_000)
    for i, window in enumerate(few.windows):
        answers = simulate_fleet(routes, window_settings(own, few, i)).answers
        when = answers.time + window.begin - window.warm
        assert np.allclose((when + 30) % 60, 30)


def test_devices_that_are_long_in_step_are_sampled_in_all_of_the_time(routes):
    """Windows would hardly ever meet the moment at which all of them have an instance."""
    own = settings(devices=40_000, workers=40, workload="periodic:6h:aligned=yes")
    few = choose_plan(routes, own, requests=2_000)
    assert (few.workers, few.devices, few.stepped) == (10, 10_000, DAY)
    assert str(few) == "10000 of 40000 devices and 10 of 40 workers, all of 86400 s"
    found = estimate_fleet(routes, own, sampling=few)
    assert found.instances == 4 * 40_000
    offload_rate = found.means["offload_rate"]
    assert offload_rate.low <= HARD / 100 <= offload_rate.high


def test_what_cannot_be_sampled(routes):
    turn = settings(workload=None, in_turn=[list(range(100))] * 200)
    assert choose_plan(routes, turn, requests=1).whole
    found = estimate_fleet(routes, turn)
    assert found.means["offload_rate"].value == HARD / 100
    with pytest.raises(InputError, match="at least 4"):
        choose_plan(routes, settings(), requests=10, windows=2)
