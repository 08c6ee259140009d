from dataclasses import fields, replace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.fleet.answers import REASON, ROUTES
from gatewise_sim.fleet.energy import Radio
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import RECONNECT_SECONDS, ServiceTime
from tests.support.routes import make_routes, poisson

pytestmark = pytest.mark.slow  # fleets are simulated

EDGE, CLOUD, FALLBACK, _ = range(len(ROUTES))
NAME = "0" * 8


def at(times, devices=None, rows=None):
    """Arrivals at given times."""
    times = np.asarray(times, np.float64)
    zeros = np.zeros(len(times), np.int64)
    chunk = (times, zeros if devices is None else devices, zeros if rows is None else rows)
    return lambda n, seconds, rng: [chunk]


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 1,
        "seconds": 600.0,
        "service": ServiceTime(0.010, 0.0),
        "broker_us": 0.0,
        "edge_ms": 0.0,
        "deadline_ms": 1e6,
    }
    return FleetSettings(**(common | changes))


def assert_all_answered(run) -> None:
    """One answer an instance, and every request ended in one way."""
    answers = run.answers
    assert (answers.route >= 0).all()
    assert np.isfinite(answers.latency_ms).all()
    counts = run.devices
    ended = sum(counts[k] for k in ("answered", "refused", "timeouts", "unsent"))
    assert counts["sent"] == ended
    assert (answers.route == CLOUD).sum() == counts["answered"]
    assert counts["mismatched"] == counts["invalid"] == counts["unknown"] == 0


def test_without_a_queue_latency_is_the_sum_of_its_parts():
    link = LinkProfile("slow", rtt_ms=100, down_kbps=64, up_kbps=32)
    run = simulate_fleet(
        make_routes(),
        settings(
            arrivals=at([1.0]),
            link=link,
            service=ServiceTime(0.010, 0.002, message=0.003),
            broker_us=500.0,
            hop_ms=4.0,
            edge_ms=7.0,
        ),
    )
    sizes = make_routes().sizes
    up = publish_bytes(request_topic(NAME), sizes.request(999_000))
    down = publish_bytes(response_topic(NAME), sizes.response(15_000))
    radio = up * 8 / 32 + down * 8 / 64  # ms
    parts = 7.0 + 100.0 + radio + 2 * 0.5 + 2 * 4.0 + 15.0
    assert run.answers.latency_ms == pytest.approx([parts], abs=1e-6)
    assert run.answers.up.tolist() == [up + PUBACK_BYTES]
    assert run.answers.down.tolist() == [down + PUBACK_BYTES]
    assert_all_answered(run)


def test_requests_that_meet_run_in_batches():
    """The first runs alone, the others meet in the queue: 4, 4 and 1 of them."""
    service = ServiceTime(0.010, 0.001)
    run = simulate_fleet(
        make_routes(), settings(arrivals=at(np.zeros(10)), service=service, max_batch=4)
    )
    ends = np.cumsum([11.0, 14.0, 14.0, 11.0])
    assert run.answers.latency_ms == pytest.approx(np.repeat(ends, [1, 4, 4, 1]))
    assert run.workers[0]["batches"] == 4
    # Workers take turns; of those out at a time a device has so many.
    run = simulate_fleet(make_routes(), settings(arrivals=at(np.zeros(10)), workers=3, max_batch=1))
    assert [w["received"] for w in run.workers] == [4, 3, 3]
    assert run.answers.latency_ms == pytest.approx(10.0 * (1 + np.arange(10) // 3))
    run = simulate_fleet(make_routes(), settings(arrivals=at(np.zeros(5)), outstanding=2))
    assert_all_answered(run)
    assert (run.answers.reason == REASON["full"]).sum() == run.devices["full"] == 3
    assert run.answers.cost[run.answers.route == FALLBACK].tolist() == [1.0] * 3


@pytest.mark.parametrize(("spread", "factor"), [("fixed", 0.5), ("exponential", 1.0)])
def test_waits_are_those_of_queueing_theory(spread, factor):
    """M/D/1 and M/M/1: rho * s / (1 - rho), and half of it where the service time is fixed.

    With 30,000 requests at rho = 0.6 the mean wait has a standard error of 1 to 2 %.
    """
    rho, mean = 0.6, 0.010
    run = simulate_fleet(
        make_routes(),
        settings(
            devices=500,
            seconds=500.0,
            arrivals=poisson(rho / mean, 10),
            service=ServiceTime(mean, 0.0, spread=spread),
            max_batch=1,
            queue=100_000,
        ),
    )
    assert_all_answered(run)
    worker = run.workers[0]
    wait = worker["queued_seconds"] / worker["answered"]
    assert wait == pytest.approx(factor * rho * mean / (1 - rho), rel=0.06)
    assert worker["busy_seconds"] / 500.0 == pytest.approx(rho, rel=0.03)
    assert run.answers.latency_ms.mean() == pytest.approx(1000 * (wait + mean), rel=0.02)


def test_a_full_worker_says_busy_and_is_asked_once_more():
    """One runs, one is queued, two are refused: their retries find the worker still busy."""
    run = simulate_fleet(
        make_routes(),
        settings(
            arrivals=at(np.zeros(4)), queue=1, service=ServiceTime(10.0, 0.0), deadline_ms=8_000.0
        ),
    )
    assert_all_answered(run)
    assert (run.answers.route == FALLBACK).all()
    assert run.workers[0]["busy"] == 4  # both copies of both
    reasons = run.answers.reason.tolist()
    assert reasons.count(REASON["cloud:busy"]) == 2
    assert reasons.count(REASON["timeout"]) == 2


def test_at_the_deadline_the_device_answers_itself():
    run = simulate_fleet(
        make_routes(),
        settings(arrivals=at([0.0, 100.0]), link=LinkProfile("far", 2000), deadline_ms=500.0),
    )
    assert_all_answered(run)
    assert run.answers.route.tolist() == [FALLBACK, FALLBACK]
    assert run.answers.latency_ms == pytest.approx([495.0, 495.0])
    assert run.answers.cost.tolist() == [3.125, 3.125]  # features of a request, and the request
    assert run.devices["late"] >= 2


def outage(text: str, **changes) -> FleetSettings:
    link, outages = LinkProfile("l", 40, 10), Outages.parse(text)
    return settings(deadline_ms=500.0, link=link, outages=outages, **changes)


def test_an_outage_of_the_cloud():
    """Everyone is answered; accuracy is that of the edge meanwhile, and comes back."""
    routes = make_routes(10, 5)
    begin, end = 60.0, 120.0
    text = f"cloud:+{begin:g}s-+{end:g}s"
    run = simulate_fleet(
        routes, outage(text, arrivals=poisson(40.0, 10), devices=20, seconds=240.0)
    )
    assert_all_answered(run)
    a = run.answers
    right = a.label == routes.truth[a.row]
    during = (a.time > begin + 0.5) & (a.time < end - 1)
    after = a.time > end + 45  # the longest pause of a breaker
    edge_only = routes.local_label == routes.truth
    assert np.array_equal(right[during], edge_only[a.row[during]])
    assert right[a.time < begin - 1].all()
    assert right[after].all()
    assert run.devices["breaker_opened"] >= 20
    assert run.devices["breaker_blocked"] > 100
    blocked = a.reason == REASON["breaker-open"]
    assert (a.cost[blocked] == 1.0).all()  # nothing is acquired for a cloud that is gone
    assert (a.latency_ms[blocked] == 0.0).all()


@pytest.mark.parametrize("what", ["link", "broker", "workers:1"])
def test_other_outages(what):
    own = outage(f"{what}:+30s-+50s", arrivals=poisson(20.0, 10), devices=10, seconds=120.0)
    run = simulate_fleet(make_routes(10, 5), replace(own, deadline_ms=1000.0, workers=2))
    assert_all_answered(run)
    a = run.answers
    during = (a.time > 36) & (a.time < 49) & (a.row < 5)
    if what == "workers:1":
        # The broker deals to the other one; only what was in the dead one's hands is lost.
        assert (a.route[during] == CLOUD).all()
        assert run.workers[1]["received"] > 1.1 * run.workers[0]["received"]
    else:
        assert (a.reason[during] == REASON["link-down"]).all()
    assert (a.route[(a.time > 60) & (a.row < 5)] == CLOUD).all()


def test_a_short_break_of_the_link_only_delays():
    run = simulate_fleet(
        make_routes(),
        settings(
            arrivals=at([10.0]),
            link=LinkProfile("l", 40),
            deadline_ms=5000.0,
            outages=Outages.parse("link:+9500ms-+11s"),
        ),
    )
    assert run.answers.route.tolist() == [CLOUD]
    assert 1000.0 < run.answers.latency_ms[0] < 3000.0


@pytest.mark.parametrize(("tls", "trips"), [(False, 3), (True, 4)])
def test_a_new_connection_begins_with_handshakes(tls, trips):
    """TCP, TLS 1.3, MQTT, subscribing: a round trip each, on every device's own link."""
    trip, begun = 0.8, 60.0 + RECONNECT_SECONDS
    before, behind = begun + trip * trips - 0.01, begun + trip * trips + 0.01
    run = simulate_fleet(
        make_routes(),
        settings(
            arrivals=at([55.0, before, behind, 90.0]),
            link=LinkProfile("l", 1000 * trip),
            outages=Outages.parse("broker:+50s-+60s"),
            tls=tls,
        ),
    )
    down = REASON["link-down"]
    assert run.answers.reason.tolist()[:2] == [down, down]
    assert run.answers.route.tolist() == [FALLBACK, FALLBACK, CLOUD, CLOUD]
    # Handshakes are not counted among the bytes, nor do they delay a request.
    assert run.answers.up[3] == run.answers.up[2]
    assert abs(run.answers.latency_ms[3] - run.answers.latency_ms[2]) < 1e-6


def columns(run) -> list[bytes]:
    return [getattr(run.answers, f.name).tobytes() for f in fields(run.answers)]


def test_the_same_seed_gives_the_same_run():
    def run(seed: int):
        return simulate_fleet(
            make_routes(10, 5),
            settings(
                devices=30,
                seconds=60.0,
                arrivals=poisson(50.0, 10),
                link=LinkProfile("l", 80, 40, loss=0.05),
                service=ServiceTime(0.01, 0.002, spread="exponential"),
                deadline_ms=400.0,
                outages=Outages.parse("cloud:+20s-+25s"),
                seed=seed,
            ),
        )

    first, again, other = run(3), run(3), run(4)
    assert columns(first) == columns(again)
    assert (first.devices, first.workers, first.events) == (
        again.devices,
        again.workers,
        again.events,
    )
    assert columns(first) != columns(other)
    for one in (first, other):
        assert_all_answered(one)
    assert first.devices["retries"] > 0


def test_costs_and_labels_are_the_estimators(small, routes):
    """Where the cloud answers in time, each instance costs what the system says of its row."""
    n = len(small.rows)
    run = simulate_fleet(
        routes,
        settings(
            devices=20,
            seconds=120.0,
            arrivals=poisson(40.0, n),
            link=LinkProfile("l", 45, 15),
        ),
    )
    assert_all_answered(run)
    a = run.answers
    assert set(a.route.tolist()) == {EDGE, CLOUD}
    assert np.array_equal(a.cost, small.system.cost(small.rows)[a.row])
    assert np.array_equal(a.label, small.system.predict(small.rows)[a.row])
    assert np.array_equal(a.route == CLOUD, small.system.offload(small.rows)[a.row])
    turn = [list(range(50))]
    edge = simulate_fleet(routes, settings(in_turn=turn, policy="edge-only"))
    assert (edge.answers.route == EDGE).all()
    assert np.array_equal(edge.answers.label, routes.local_label[:50])
    cloud = simulate_fleet(routes, settings(in_turn=turn, policy="cloud-only"))
    assert (cloud.answers.route == CLOUD).all()
    assert np.array_equal(cloud.answers.label, routes.cloud_label[:50])
    assert (cloud.answers.feature_cost == routes.alone_cost).all()


def test_joules_are_those_of_the_radio():
    """Two requests within one tail wake the radio once; what stays on the device costs nothing."""
    radio = Radio("r", wake_w=1, wake_s=1, active_w=2, tail_w=1, tail_s=10)
    link = LinkProfile("l", rtt_ms=990, radio=radio)
    run = simulate_fleet(
        make_routes(10, 5),
        settings(arrivals=at([0.0, 5.0, 6.0], rows=np.array([0, 1, 9])), link=link),
    )
    assert run.answers.latency_ms[:2] == pytest.approx([1000.0, 1000.0])
    assert run.joules == pytest.approx([1 + 2 + 10, 2 + 4, 0.0])


def test_rows_in_turn_wait_for_each_other():
    run = simulate_fleet(
        make_routes(10, 5),
        settings(devices=2, in_turn=[[0, 9, 1], [2]], edge_ms=1.0, pause_ms=2.0),
    )
    assert run.answers.time == pytest.approx([0.0, 0.013 + 0.008, 0.016 + 0.008, 0.0], abs=0.02)
    times, took = run.answers.time[:3], run.answers.latency_ms[:3] / 1000
    assert times[1:] == pytest.approx(times[:-1] + took[:-1] + 0.002)
    assert run.answers.route.tolist() == [CLOUD, EDGE, CLOUD, CLOUD]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"policy": "both"}, "policy 'both'"),
        ({"arrivals": None}, "one of a workload, arrivals, and rows in turn"),
        ({"hop_ms": -1}, "hop_ms is -1"),
        ({"arrivals": None, "workload": "often"}, "workload 'often'"),
        ({"audit": 2.0}, "audit is 2.0; give a share"),
    ],
)
def test_settings_are_checked(changes, words):
    with pytest.raises(InputError, match=words):
        settings(**({"arrivals": at([0.0])} | changes))
