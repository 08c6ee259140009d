"""Tests of the figures of a run: means, intervals, energy, money and timeline."""

import numpy as np
import pytest
from scipy.stats import binomtest

from gatewise.errors import InputError
from gatewise_sim.fleet.energy import MONTH, DeviceEnergy, Prices, Radio
from gatewise_sim.fleet.results import ROUTES
from gatewise_sim.intervals import N_BATCHES, Batches
from tests.support.fleets import (
    at_times,
    figures,
    make_scenario,
    make_table,
    run,
    write_link,
)


@pytest.fixture(scope="module")
def table():
    return make_table(60, 20)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    return make_scenario(
        devices=20, time="300s", workload="poisson:30/min", deadline_ms=500.0,
        link=write_link(folder, name="l", rtt_ms=40, jitter_ms=10, loss=0.02),
        outage=("cloud:+100s-+130s",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def fleet(table, scenario):
    return run(table, scenario)


@pytest.fixture(scope="module")
def result(table, scenario, fleet):
    return figures(table, scenario, fleet)


def test_figures_equal_means_of_the_answers(table, fleet, result):
    answers = fleet.answers
    n = len(answers)
    assert result.instances == n
    is_correct = answers.label == table.truth[answers.row]
    assert result.accuracy.value == pytest.approx(is_correct.mean())
    assert result.offload_rate.value == pytest.approx((answers.payload_up > 0).mean())
    assert result.cost.value == pytest.approx(answers.cost.mean())
    assert result.bytes.total * n == pytest.approx(answers.up.sum() + answers.down.sum())
    parts = (result.bytes.request, result.bytes.response, result.bytes.protocol)
    assert sum(parts) == pytest.approx(result.bytes.total)
    for number, route in enumerate(ROUTES):
        assert getattr(result.answers, route) == (answers.route == number).sum()
    assert result.answers.lost == 0
    assert result.latency_ms["p95"].value == np.quantile(answers.latency_ms, 0.95)
    assert sum(result.breakdown_ms.values()) == pytest.approx(answers.latency_ms.mean())
    assert sum(result.reasons.values()) == n
    assert sum(result.histogram.all) == n
    assert sum(result.histogram.offloaded) == answers.offloaded.sum()
    assert len(result.histogram.edges_ms) == len(result.histogram.all) + 1


def test_timeline_and_classes_sum_to_the_run(fleet, result):
    n = len(fleet.answers)
    assert sum(bin_.instances for bin_ in result.timeline) == n
    for bin_ in result.timeline:
        assert sum(getattr(bin_, route) for route in ROUTES) == bin_.instances
    outage_bins = [b for b in result.timeline if b.begin >= 100 and b.end <= 130]
    assert sum(b.end - b.begin for b in outage_bins) == pytest.approx(30)
    assert sum(b.cloud for b in outage_bins) == 0
    assert all(b.accuracy == b.edge_accuracy for b in outage_bins)
    assert sum(c.instances for c in result.classes) == n
    assert result.classes[1].accuracy == result.accuracy.value  # all rows are of class 1
    assert result.classes[0].accuracy is None
    assert result.classes[1].precision == 1.0


def test_run_without_instances_is_refused(table, scenario):
    fleet = run(table, scenario, arrivals=at_times([]))
    with pytest.raises(InputError, match="no instance arrived"):
        figures(table, scenario, fleet)


def test_each_batch_covers_the_whole_day(table, scenario, fleet):
    batches = Batches.deal(fleet.answers, scenario.seconds, len(table))
    by_time, by_row = batches.groups
    in_outage = (fleet.answers.time >= 100) & (fleet.answers.time < 130)
    shares = [in_outage[by_time == batch].mean() for batch in range(N_BATCHES)]
    assert np.std(shares) < 0.05
    assert set(by_row) == set(range(N_BATCHES))
    assert len(Batches.deal(fleet.answers, scenario.seconds, 19).groups) == 1


def test_repeated_rows_do_not_narrow_intervals():
    """The width of an interval depends on the 40 rows, not on the instances drawn from them."""
    table = make_table(40, 10)
    scenario = make_scenario(devices=200, time="600s", workload="poisson:6/min", link="wifi")
    result = figures(table, scenario, run(table, scenario))
    assert result.instances > 10_000
    low, high = binomtest(10, 40).proportion_ci(method="wilson")
    assert result.offload_rate.high - result.offload_rate.low >= 0.9 * (high - low)
    # 40 rows without an error do not exclude an error rate of 5 %
    assert result.accuracy.value == 1.0
    assert result.accuracy.low < 0.95
    half_width = (result.cost.high - result.cost.low) / 2
    costs = np.where(table.offload, 3.5, 1.0)
    assert half_width == pytest.approx(2.09 * costs.std() / 40**0.5, rel=0.5)


# -- energy and money -----------------------------------------------------------------------------


def test_joules_equal_a_manual_sum(tmp_path):
    """Two requests within one tail wake the radio once; local answers use no radio energy."""
    table = make_table(10, 5)
    link = write_link(tmp_path, name="l", rtt_ms=990)
    with open(link, "a") as file:
        file.write("[radio]\nwake_w = 1\nwake_s = 1\nactive_w = 2\ntail_w = 1\ntail_s = 10\n")
        file.write("idle_w = 0.5\n")
    scenario = make_scenario(link=link, time="100s")
    assert scenario.link_profile.radio == Radio(
        name="l", wake_w=1, wake_s=1, active_w=2, tail_w=1, tail_s=10, idle_w=0.5
    )
    fleet = run(table, scenario, arrivals=at_times([0.0, 5.0, 6.0], rows=[0, 1, 9]))
    assert fleet.answers.latency_ms[:2] == pytest.approx([1000.0, 1000.0])
    assert fleet.answers.joules == pytest.approx([1 + 2 + 10, 2 + 4, 0.0])
    energy = DeviceEnergy(idle_w=0.25, battery_wh=10, stage_j=0.1, feature_j=0.01)
    result = figures(table, scenario, fleet, energy=energy)
    assert result.joules.radio == pytest.approx(19 / 3)
    assert result.joules.features == pytest.approx((0.02 + 0.02 + 0.01) / 3)
    assert result.joules.stages == pytest.approx(0.1)
    active_joules = (19 + 0.05 + 0.3) * 864  # a day has 864 runs
    assert result.joules_per_device_day == pytest.approx(active_joules + 0.75 * 86_400)
    assert result.battery_days == pytest.approx(36_000 / (active_joules + 0.75 * 86_400))


def test_bill_equals_a_manual_sum(table, scenario, fleet):
    prices = Prices(per_mb=0.5, per_worker_hour=1.0, per_million_requests=2.0, per_device_month=3.0)
    bill = figures(table, scenario, fleet, prices=prices).money
    runs_per_month = MONTH / 300
    n_requests = fleet.counts["sent"] + fleet.counts["retries"] - fleet.counts["unsent"]
    mqtt_bytes = float(fleet.answers.up.sum() + fleet.answers.down.sum())
    # headers of IP and TCP take 40 bytes per packet; a request takes two packets in each direction
    assert bill.data == pytest.approx(
        0.5e-6 * (mqtt_bytes + 160 * n_requests) * runs_per_month, rel=0.02
    )
    assert bill.workers == pytest.approx(730.5)
    assert bill.requests == pytest.approx(2e-6 * n_requests * runs_per_month)
    assert bill.devices == 60.0


def test_fleet_without_offloads_pays_no_workers():
    table = make_table(10, 0)
    scenario = make_scenario(devices=5, time="60s", workload="poisson:1/s")
    result = figures(table, scenario, run(table, scenario), prices=Prices(per_worker_hour=1.0))
    assert result.money.workers == 0.0
    assert result.offload_rate.low == result.offload_rate.high == 0.0
