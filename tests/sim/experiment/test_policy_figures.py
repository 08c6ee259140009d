"""Tests of the figures of a run: means, intervals, energy, money and timeline."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.errors import InputError
from gatewise_sim.experiment.sweep import FIGURES
from gatewise_sim.fleet.energy import MONTH_SECONDS, DeviceEnergy, Prices, Radio
from gatewise_sim.fleet.results import ROUTES
from gatewise_sim.intervals import N_BATCHES, Batches
from tests.support.fleets import (
    arrivals_at,
    make_policy_result,
    make_scenario,
    make_table,
    run_policy,
    write_link,
)


@pytest.fixture(scope="module")
def table():
    """A table of 60 rows; a third of them are offloaded."""
    return make_table(60, 20)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """Five minutes of twenty devices over a lossy link, with an outage of the cloud."""
    folder = tmp_path_factory.mktemp("links")
    return make_scenario(
        devices=20, time="300s", workload="poisson:30/min", deadline_ms=500.0,
        link=write_link(folder, name="l", rtt_ms=40, jitter_ms=10, loss=0.02),
        outage=("cloud:+100s-+130s",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def fleet_run(table, scenario):
    """The run of the scenario."""
    return run_policy(table, scenario)


@pytest.fixture(scope="module")
def policy_result(table, scenario, fleet_run):
    """The figures of the run."""
    return make_policy_result(table, scenario, fleet_run)


def test_figures_equal_means_of_the_answers(table, fleet_run, policy_result):
    answers = fleet_run.answers
    n_instances = len(answers)
    assert policy_result.instances == n_instances
    is_correct = answers.label == table.truth[answers.row]
    assert policy_result.accuracy.value == pytest.approx(is_correct.mean())
    assert policy_result.offload_rate.value == pytest.approx((answers.payload_bytes_up > 0).mean())
    assert policy_result.cost.value == pytest.approx(answers.cost.mean())
    assert policy_result.bytes.total * n_instances == pytest.approx(
        answers.bytes_up.sum() + answers.bytes_down.sum()
    )
    byte_parts = (
        policy_result.bytes.request,
        policy_result.bytes.response,
        policy_result.bytes.protocol,
    )
    assert sum(byte_parts) == pytest.approx(policy_result.bytes.total)
    for route_index, route in enumerate(ROUTES):
        assert getattr(policy_result.answers, route) == (answers.route == route_index).sum()
    assert policy_result.answers.lost == 0
    assert policy_result.latency_ms["p95"].value == np.quantile(answers.latency_ms, 0.95)
    assert sum(policy_result.breakdown_ms.values()) == pytest.approx(answers.latency_ms.mean())
    assert sum(policy_result.reasons.values()) == n_instances
    assert sum(policy_result.histogram.all) == n_instances
    assert sum(policy_result.histogram.offloaded) == answers.is_offloaded.sum()
    assert len(policy_result.histogram.edges_ms) == len(policy_result.histogram.all) + 1


def test_timeline_and_classes_sum_to_the_run(fleet_run, policy_result):
    n_instances = len(fleet_run.answers)
    assert sum(time_bin.instances for time_bin in policy_result.timeline) == n_instances
    for time_bin in policy_result.timeline:
        assert sum(getattr(time_bin, route) for route in ROUTES) == time_bin.instances
    outage_bins = [
        time_bin
        for time_bin in policy_result.timeline
        if time_bin.begin >= 100 and time_bin.end <= 130
    ]
    assert sum(time_bin.end - time_bin.begin for time_bin in outage_bins) == pytest.approx(30)
    assert sum(time_bin.cloud for time_bin in outage_bins) == 0
    assert all(time_bin.accuracy == time_bin.edge_accuracy for time_bin in outage_bins)
    assert sum(class_result.instances for class_result in policy_result.classes) == n_instances
    assert (
        policy_result.classes[1].accuracy == policy_result.accuracy.value
    )  # all rows are of class 1
    assert policy_result.classes[0].accuracy is None
    assert policy_result.classes[1].precision == 1.0


def test_answers_to_rows_of_an_unknown_class_lower_the_precision(table, scenario, fleet_run):
    # every second row has a label that is no class of the bundle
    truth = np.where(np.arange(len(table)) % 2, table.truth, UNKNOWN_CLASS)
    odd_table = dataclasses.replace(table, truth=truth)
    policy_result = make_policy_result(odd_table, scenario, fleet_run)
    is_class_1 = fleet_run.answers.label == 1
    precision = np.mean(truth[fleet_run.answers.row][is_class_1] == 1)
    assert 0.4 < precision < 0.6
    assert policy_result.classes[1].precision == precision


def test_fallbacks_beyond_the_limit_of_offloads_have_their_reason(table):
    scenario = make_scenario(
        devices=2, time="300s", workload="poisson:30/min", max_offloads="6/h", link="wifi"
    )
    policy_result = make_policy_result(table, scenario, run_policy(table, scenario))
    assert policy_result.reasons["offload-limit"] == policy_result.answers.fallback > 20


def test_lost_instances_are_not_answers_of_the_timeline(table, scenario, fleet_run):
    answers = fleet_run.answers
    is_lost = np.arange(len(answers)) % 5 == 0
    lossy_answers = dataclasses.replace(answers, route=np.where(is_lost, -1, answers.route))
    lossy_run = dataclasses.replace(fleet_run, answers=lossy_answers)
    policy_result = make_policy_result(table, scenario, lossy_run)
    assert policy_result.answers.lost == is_lost.sum()
    assert sum(time_bin.instances for time_bin in policy_result.timeline) == len(answers)
    for route in ROUTES:
        n_answers = sum(getattr(time_bin, route) for time_bin in policy_result.timeline)
        assert n_answers == getattr(policy_result.answers, route)


def test_run_that_loses_every_instance_has_no_latencies(table, scenario, fleet_run):
    answers = dataclasses.replace(
        fleet_run.answers, route=np.full(len(fleet_run.answers), -1, fleet_run.answers.route.dtype)
    )
    lost_run = dataclasses.replace(fleet_run, answers=answers)
    policy_result = make_policy_result(table, scenario, lost_run, prices=Prices())
    assert policy_result.answers.lost == policy_result.instances == len(answers)
    assert policy_result.latency_ms == {}
    assert policy_result.histogram.all == ()
    assert FIGURES["p50_ms"](policy_result) is None


@pytest.mark.slow
def test_audits_of_a_part_of_the_fleet_are_scaled_once():
    """The counters of workers are those of the whole fleet, and need no further factor."""
    table = make_table(20, 5, max_disagreement=0.1)
    scenario = make_scenario(devices=100, workload="poisson:30/min", audit=0.1)
    fleet_run = run_policy(table, scenario, n_devices=10)
    policy_result = make_policy_result(table, scenario, fleet_run)
    assert fleet_run.scale == 10.0  # 100 devices over 10
    n_audited = 10.0 * fleet_run.answers.is_audited.sum()
    assert policy_result.answers.audits == policy_result.audit.compared == n_audited > 0


def test_run_without_instances_is_refused(table, scenario):
    fleet_run = run_policy(table, scenario, arrivals=arrivals_at([]))
    with pytest.raises(InputError, match="no instance arrived"):
        make_policy_result(table, scenario, fleet_run)


def test_each_batch_covers_the_whole_day(table, scenario, fleet_run):
    batches = Batches.deal(fleet_run.answers, scenario.seconds, len(table))
    batch_by_time, batch_by_row = batches.batch_indices
    in_outage = (fleet_run.answers.time >= 100) & (fleet_run.answers.time < 130)
    shares = [in_outage[batch_by_time == batch].mean() for batch in range(N_BATCHES)]
    # half of the outage's share of the run, 0.1; batches in one piece would have 0.3
    assert np.std(shares) < 0.05
    # fewer rows than batches are not dealt
    assert set(batch_by_row) == set(range(N_BATCHES))
    assert len(Batches.deal(fleet_run.answers, scenario.seconds, 19).batch_indices) == 1


def test_repeated_rows_do_not_narrow_intervals():
    """The width of an interval depends on the 40 rows, not on the instances drawn from them."""
    table = make_table(40, 10)
    scenario = make_scenario(devices=200, time="600s", workload="poisson:6/min", link="wifi")
    policy_result = make_policy_result(table, scenario, run_policy(table, scenario))
    assert policy_result.instances > 10_000
    low, high = binomtest(10, 40).proportion_ci(method="wilson")
    assert policy_result.offload_rate.high - policy_result.offload_rate.low >= 0.9 * (high - low)
    # 40 rows without an error do not exclude an error rate of 5 %
    assert policy_result.accuracy.value == 1.0
    assert policy_result.accuracy.low < 0.95
    half_width = (policy_result.cost.high - policy_result.cost.low) / 2
    # An offloaded row costs 3 and its answer 0.5. The width has a t quantile of 2.09 and varies by
    # a few tenths, because it is estimated from 20 batches of two rows.
    costs = np.where(table.is_offloaded, 3.5, 1.0)
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
    fleet_run = run_policy(
        table, scenario, arrivals=arrivals_at([0.0, 5.0, 6.0], row_numbers=[0, 1, 9])
    )
    assert fleet_run.answers.latency_ms[:2] == pytest.approx([1000.0, 1000.0])
    # The first request wakes the radio for 1 J, takes 1 s at 2 W and a tail of 10 J. The second
    # comes 4 s later: it adds 1 s at 2 W and extends the tail by 4 s.
    assert fleet_run.answers.radio_joules == pytest.approx([1 + 2 + 10, 2 + 4, 0.0])
    energy = DeviceEnergy(idle_w=0.25, battery_wh=10, stage_j=0.1, feature_j=0.01)
    policy_result = make_policy_result(table, scenario, fleet_run, energy=energy)
    # The three instances have 19 J of radio, 2, 2 and 1 features, and one stage each.
    assert policy_result.joules.radio == pytest.approx(19 / 3)
    assert policy_result.joules.features == pytest.approx((0.02 + 0.02 + 0.01) / 3)
    assert policy_result.joules.stages == pytest.approx(0.1)
    active_joules = (19 + 0.05 + 0.3) * 864  # a day has 864 runs of 100 s
    # Device and radio idle at 0.25 W and 0.5 W, and 10 Wh are 36,000 J.
    assert policy_result.joules_per_device_day == pytest.approx(active_joules + 0.75 * 86_400)
    assert policy_result.battery_days == pytest.approx(36_000 / (active_joules + 0.75 * 86_400))


def test_bill_equals_a_manual_sum(table, scenario, fleet_run):
    prices = Prices(per_mb=0.5, per_worker_hour=1.0, per_million_requests=2.0, per_device_month=3.0)
    bill = make_policy_result(table, scenario, fleet_run, prices=prices).money
    runs_per_month = MONTH_SECONDS / 300
    n_requests = (
        fleet_run.device_counts["sent"]
        + fleet_run.device_counts["retries"]
        - fleet_run.device_counts["unsent"]
    )
    mqtt_bytes = float(fleet_run.answers.bytes_up.sum() + fleet_run.answers.bytes_down.sum())
    # headers of IP and TCP take 40 bytes per packet; a request takes two packets in each direction
    assert bill.data == pytest.approx(
        0.5e-6 * (mqtt_bytes + 160 * n_requests) * runs_per_month,
        rel=0.02,  # requests without a response take fewer packets
    )
    assert bill.workers == pytest.approx(730.5)  # hours of a month, at 1 per hour
    assert bill.requests == pytest.approx(2e-6 * n_requests * runs_per_month)
    assert bill.devices == 60.0  # 20 devices at 3


def test_fleet_without_offloads_pays_no_workers():
    table = make_table(10, 0)
    scenario = make_scenario(devices=5, time="60s", workload="poisson:1/s")
    policy_result = make_policy_result(
        table, scenario, run_policy(table, scenario), prices=Prices(per_worker_hour=1.0)
    )
    assert policy_result.money.workers == 0.0
    assert policy_result.offload_rate.low == policy_result.offload_rate.high == 0.0
