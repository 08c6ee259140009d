"""Every figure of an estimate, against a count by hand over the answers of the very same run."""

import json
from collections import Counter
from dataclasses import asdict, astuple, fields, replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import REASONS, ROUTES
from gatewise_sim.fleet.energy import DeviceEnergy, radio_joules
from gatewise_sim.fleet.estimate.intervals import Measurement, mean
from gatewise_sim.fleet.estimate.result import MEANS, FleetEstimate
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime

pytestmark = pytest.mark.slow  # fleets are simulated

EDGE, CLOUD, FALLBACK, ERROR = range(len(ROUTES))
BEGIN, END = 200.0, 260.0


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 40,
        "seconds": 600.0,
        "workload": "poisson:6/min",
        "link": PROFILES["4g"],
        "service": ServiceTime(0.010, 0.002),
        "edge_ms": [0.5, 1.5],
        "outages": Outages.parse(f"cloud:+{BEGIN:g}s-+{END:g}s"),
        "seed": 5,
    }
    return FleetSettings(**(common | changes))


@pytest.fixture(scope="module")
def energy(routes) -> DeviceEnergy:
    features = np.linspace(0.0, 0.5, routes.sets.shape[1])
    return DeviceEnergy(feature_j=features, stage_j=np.array([0.25, 0.75]))


@pytest.fixture(scope="module", params=["system", "audited", "cloud-only", "edge-only"])
def both(request, routes, energy):
    audits = {"audited": {"audit": 0.3}}
    own = settings(**audits.get(request.param, {"policy": request.param}))
    run = simulate_fleet(routes, own)
    return own, run, estimate_fleet(routes, own, device_energy=energy)


def requested(answers):
    """What was to be offloaded; an own answer that has a request was audited."""
    return (answers.payload_up > 0) & (answers.route != EDGE)


def test_means_are_those_of_the_answers(both, routes, energy):
    own, run, found = both
    a, n = run.answers, len(run.answers)
    assert found.instances == n == found.instances_stepped
    expected = Counter()
    for i in range(n):
        row, route, reason = int(a.row[i]), int(a.route[i]), REASONS[a.reason[i]]
        expected["accuracy"] += a.label[i] == routes.truth[row]
        expected["edge_accuracy"] += routes.local_label[row] == routes.truth[row]
        audited = bool(a.payload_up[i] > 0 and route == EDGE)
        expected["offload_rate"] += bool(a.payload_up[i] > 0) and not audited
        expected["audited"] += audited
        expected["audit_bytes"] += audited * (a.up[i] + a.down[i])
        expected[ROUTES[route]] += 1
        for name in ("cost", "feature_cost", "payload_up", "payload_down"):
            expected[name] += getattr(a, name)[i]
        expected["bytes_up"] += a.up[i]
        expected["bytes_down"] += a.down[i]
        expected["radio_j"] += run.joules[i]
        # What was acquired and run: by the sets of features, not by the estimate's own rule.
        asked = audited or route == CLOUD or reason in ("timeout", "deadline", "cloud:busy")
        acquired = routes.sets[(routes.request_set if asked else routes.local_set)[row]]
        stages = int(routes.exit[row]) + 1
        if own.policy == "cloud-only" and route == CLOUD:
            acquired = np.isin(np.arange(len(acquired)), routes.plan.request_inputs)
            stages = 0
        expected["feature_j"] += energy.feature_j[acquired].sum()
        expected["stage_j"] += energy.stage_j[:stages].sum()
    json.dumps(asdict(found) | {"plan": None}, allow_nan=False)
    assert found.devices == run.devices
    for name in ("received", "answered", "batches", "busy_seconds", "expired", "busy"):
        assert found.workers[name] == pytest.approx(sum(w[name] for w in run.workers))
    busy = sum(w["busy_seconds"] for w in run.workers)
    assert found.utilisation == found.workers["utilisation"] == pytest.approx(busy / own.seconds)
    assert set(found.means) == set(MEANS) == set(expected) | {"error", "fallback", "cloud", "edge"}
    for name, estimate in found.means.items():
        assert estimate.value == pytest.approx(expected[name] / n, rel=1e-12, abs=1e-15), name
        assert estimate.low <= estimate.value <= estimate.high


def test_workers_are_busy_all_the_time_at_most(routes):
    own = settings(seconds=1.0, workload="poisson:5/s", deadline_ms=1e5, policy="cloud-only")
    found = estimate_fleet(routes, replace(own, service=ServiceTime(1.0, 0.0), max_batch=1))
    assert found.workers["busy_seconds"] > 2
    assert found.utilisation == 1.0


def test_intervals_of_rows_are_those_of_so_many_independent_instances(both):
    _, run, found = both
    a = run.answers
    counts = np.bincount(a.row)
    n = counts.sum() ** 2 / (counts**2).sum()
    assert n < len(np.unique(a.row)) < len(a) / 5
    low, high = found.of_rows["accuracy"]
    right = stats.binomtest(round(n * found.means["accuracy"].value), round(n)).proportion_ci(
        method="wilson"
    )
    assert (low, high) == pytest.approx(right, abs=0.02)
    low, high = found.of_rows["cost"]
    half = stats.t.ppf(0.975, n - 1) * a.cost.std() / n**0.5
    assert high - low == pytest.approx(2 * half, rel=1e-6)
    shares = stats.binomtest(round(0.95 * n), round(n)).proportion_ci(method="wilson")
    assert found.of_rows["p95"] == pytest.approx(np.nanquantile(a.latency_ms, shares), rel=0.05)


def test_classes_reasons_and_histogram_count_the_answers(both, routes):
    _, run, found = both
    a = run.answers
    truth = routes.truth[a.row]
    for entry in found.classes:
        own = truth == entry["class_index"]
        assert entry["instances"] == own.sum()
        assert entry["offload_rate"] == requested(a)[own].mean()
        assert entry["accuracy"] == (a.label[own] == truth[own]).mean()
        assert entry["edge_accuracy"] == (routes.local_label[a.row[own]] == truth[own]).mean()
        answered = a.label == entry["class_index"]
        right = (truth[answered] == entry["class_index"]).mean() if answered.any() else None
        assert entry["precision"] == right
    assert sum(entry["instances"] for entry in found.classes) == len(a)
    assert found.reasons == {
        name: count for i, name in enumerate(REASONS) if (count := (a.reason == i).sum())
    }
    wanted = requested(a) | (a.route == FALLBACK)
    edges = found.histogram["edges_ms"]
    for name, which in (("all", a.latency_ms), ("offloaded", a.latency_ms[wanted])):
        counts = found.histogram[name]
        assert sum(counts) == len(which)
        for k, count in enumerate(counts):
            near = 1e-9 * edges[k]
            surely = ((which >= edges[k] + near) & (which < edges[k + 1] - near)).sum()
            perhaps = ((which >= edges[k] - near) & (which < edges[k + 1] + near)).sum()
            assert surely <= count <= perhaps
    for q, name in ((50, "p50"), (95, "p95"), (99, "p99")):
        exact = np.percentile(a.latency_ms, q, method="inverted_cdf")
        assert found.latency_ms[name].value == pytest.approx(exact, rel=0.0024)
        if wanted.any():
            exact = np.percentile(a.latency_ms[wanted], q, method="inverted_cdf")
            assert found.latency_ms[f"offloaded_{name}"].value == pytest.approx(exact, rel=0.0024)
        else:
            assert f"offloaded_{name}" not in found.latency_ms


def test_the_breakdown_is_the_mean_latency(both):
    own, run, found = both
    a = run.answers
    assert sum(found.breakdown_ms.values()) == pytest.approx(a.latency_ms.mean(), rel=1e-9)
    in_vain = (a.route == FALLBACK) | (a.route == ERROR)
    waited = (a.latency_ms - a.device_ms)[in_vain].sum() / len(a)
    assert found.breakdown_ms["waiting"] == pytest.approx(waited, rel=1e-6)
    assert found.breakdown_ms["cloud"] == pytest.approx(a.cloud_ms.mean(), rel=1e-6)
    if own.policy != "edge-only":
        assert found.breakdown_ms["cloud"] * len(a) > 10.0 * (a.route == CLOUD).sum()
        assert found.breakdown_ms["waiting"] > 0


def test_the_timeline_shows_the_outage(both, routes):
    own, run, found = both
    a = run.answers
    assert sum(t["instances"] for t in found.timeline) == len(a)
    for route in ROUTES:
        count = (a.route == ROUTES.index(route)).sum()
        assert sum(t[route] for t in found.timeline) == count
    for before, after in pairwise(found.timeline):
        assert before["end"] == after["begin"]
    for t in found.timeline:
        inside = (a.time >= t["begin"]) & (a.time < t["end"])
        assert t["instances"] == inside.sum()
        if not inside.any():
            continue
        right = (a.label == routes.truth[a.row])[inside].mean()
        assert t["accuracy"] == pytest.approx(right)
        if BEGIN < t["begin"] < END - 10 and own.policy != "edge-only":
            assert t["cloud"] == 0
            assert t["accuracy"] == pytest.approx(t["edge_accuracy"])
    assert found.faults == [{"what": "cloud", "begin": BEGIN, "end": END, "count": 1}]
    after = [t for t in found.timeline if t["begin"] > END + 60]
    assert sum(t["fallback"] for t in after) == 0
    assert (sum(t["cloud"] for t in after) > 0) == (own.policy != "edge-only")


def test_a_run_that_is_over_gives_the_same_estimate(both, routes, energy):
    own, run, found = both
    rng = np.random.default_rng(0)
    order = rng.permutation(len(run.answers))
    shuffled = replace(run, answers=run.answers.take(order), joules=run.joules[order])
    again = FleetEstimate.from_run(routes, own, shuffled, device_energy=energy)
    for field in fields(found):
        if field.name in ("events", "workers"):
            continue
        assert _near(getattr(again, field.name)) == _near(getattr(found, field.name)), field.name


def _near(value):
    """The same with floats rounded: sums in another order differ in the last bits."""
    if isinstance(value, Measurement):
        value = astuple(value)
    if isinstance(value, dict):
        return {k: _near(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_near(v) for v in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_joules_are_those_of_each_devices_radio(routes):
    """Device by device, from what its instances report."""
    own = settings(outages=Outages(), workload="poisson:3/min")
    run = simulate_fleet(routes, own)
    a, total = run.answers, 0.0
    for device in range(own.devices):
        mine = a.take((a.device == device) & (a.payload_up > 0))
        begin = mine.time + mine.device_ms / 1000.0
        mine, begin = mine.take(np.argsort(begin)), np.sort(begin)
        end = mine.time + mine.latency_ms / 1000.0
        total += radio_joules(own.link.radio, mine.device, begin, end, mine.up, mine.down).sum()
    found = estimate_fleet(routes, own)
    assert total > 0
    assert found.means["radio_j"].value == pytest.approx(total / len(a), rel=1e-5)


def test_without_a_truth_or_instances(small, routes):
    unknown = Routes.from_bundle(small.bundle, small.rows[:50])
    found = estimate_fleet(unknown, settings(devices=5))
    assert "accuracy" not in found.means
    assert {t["accuracy"] for t in found.timeline} == {None}
    assert all(entry["instances"] == 0 for entry in found.classes)
    with pytest.raises(InputError, match="no instance came"):
        estimate_fleet(routes, settings(devices=1, seconds=0.001))
    with pytest.raises(InputError, match="jobs is 0"):
        estimate_fleet(routes, settings(), jobs=0)


def test_an_interval_of_a_share_ends_at_what_shares_can_be():
    sizes, segments = np.full(6, 10.0), np.zeros(6, np.int64)
    right = np.array([10.0, 10.0, 9.0, 10.0, 10.0, 10.0])
    found = mean(right, sizes, segments, most=1.0)
    assert found.low < found.value < found.high == 1.0
    assert mean(10.0 - right, sizes, segments).low == 0.0
    assert mean(right, sizes, segments).high > 1.0
