"""Test fleets in virtual time: latencies, deadlines, outages, and samples of large fleets."""

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.link.offload import RoundTrip
from gatewise_sim.fleet.broker import DETECT_SECONDS, RECONNECT_SECONDS
from gatewise_sim.fleet.link import (
    PUBACK_BYTES,
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    MessageSizes,
    publish_bytes,
)
from gatewise_sim.fleet.results import CLOUD, EDGE, FALLBACK, REASON
from gatewise_sim.fleet.run import (
    MAX_DEVICES,
    MAX_INSTANCES,
    MAX_REQUESTS,
    FleetPolicy,
    VirtualFleet,
    choose_n_devices,
)
from gatewise_sim.timings import Timings
from tests.support.fleets import (
    RUN_TIMINGS,
    arrivals_at,
    make_policy_result,
    make_scenario,
    make_table,
    run_policy,
    system_policy,
    write_link,
)


def assert_all_answered(fleet_run) -> None:
    """Assert that each instance has one answer and each request one outcome."""
    answers = fleet_run.answers
    assert (answers.route >= 0).all()
    assert np.isfinite(answers.latency_ms).all()
    counts = fleet_run.device_counts
    n_ended = sum(counts[name] for name in ("answered", "refused", "timeouts", "unsent"))
    assert counts["sent"] == n_ended
    assert (answers.route == CLOUD).sum() == counts["answered"]
    # virtual workers send only valid responses to known requests
    assert counts["mismatched"] == counts["invalid"] == counts["unknown"] == 0


def test_latency_without_a_queue_is_the_sum_of_its_parts(tmp_path):
    link = write_link(tmp_path, name="slow", rtt_ms=100, down_kbps=64, up_kbps=32)
    timings = Timings(
        edge_ms=(7.0,), run_us=10_000, instance_us=2000, message_us=3000, broker_us=500, hop_ms=4
    )
    fleet_run = run_policy(
        make_table(), make_scenario(link=link), timings, arrivals=arrivals_at([1.0])
    )
    table = make_table()
    # the sizes of a request with a time to live of about 1e6 ms, the deadline, and of a response
    # with the worker's 15,000 us
    sizes = MessageSizes(
        model=table.model, version=table.version, n_values=table.n_values,
        n_classes=len(table.classes), dtype=table.dtype,
    )  # fmt: skip
    bytes_up = publish_bytes(REQUEST_TOPIC, sizes.request(999_000))
    bytes_down = publish_bytes(RESPONSE_TOPIC, sizes.response(15_000))
    transfer_ms = bytes_up * 8 / 32 + bytes_down * 8 / 64  # kbit/s are bits per ms
    milliseconds = {
        "stage on the device": 7.0,
        "round trip of the link": 100.0,
        "transfer of both messages": transfer_ms,
        "both messages in the broker": 2 * 0.5,
        "hop to the worker and back": 2 * 4.0,
        "run, instance and message in the worker": 10.0 + 2.0 + 3.0,
    }
    total_ms = sum(milliseconds.values())
    assert fleet_run.answers.latency_ms == pytest.approx([total_ms], abs=1e-6)
    # each side acknowledges the other's message
    assert fleet_run.answers.bytes_up.tolist() == [bytes_up + PUBACK_BYTES]
    assert fleet_run.answers.bytes_down.tolist() == [bytes_down + PUBACK_BYTES]
    assert_all_answered(fleet_run)


def test_number_of_unanswered_requests_is_bounded():
    scenario = make_scenario(outstanding=2)
    fleet_run = run_policy(make_table(), scenario, arrivals=arrivals_at(np.zeros(5)))
    assert_all_answered(fleet_run)
    assert (
        (fleet_run.answers.reason == REASON["full"]).sum() == fleet_run.device_counts["full"] == 3
    )
    # without a request the features cost 1
    assert fleet_run.answers.cost[fleet_run.answers.route == FALLBACK].tolist() == [1.0] * 3


# -- outages ------------------------------------------------------------------------------------


def make_outage_scenario(tmp_path, outage: str, **changes):
    """Make a scenario with an outage and a link of 40 ms."""
    link = write_link(tmp_path, name="l", rtt_ms=40, jitter_ms=10)
    return make_scenario(link=link, outage=(outage,), **changes)


@pytest.mark.parametrize("component", ["link", "broker", "workers:1"])
def test_outages_of_link_broker_and_workers_cause_fallbacks(tmp_path, component):
    scenario = make_outage_scenario(
        tmp_path, f"{component}:+30s-+50s", workload="poisson:2/s", devices=10, time="120s",
        deadline_ms=1000.0, workers=2,
    )  # fmt: skip
    fleet_run = run_policy(make_table(10, 5), scenario)
    assert_all_answered(fleet_run)
    answers = fleet_run.answers
    is_hard = answers.row < 5  # the rows to offload
    # from 30 s to 50 s, except the time until a device detects the outage, and a margin
    assert DETECT_SECONDS < 5
    in_outage = (answers.time > 36) & (answers.time < 49) & is_hard
    if component == "workers:1":
        # the broker sends all requests to the other worker
        assert (answers.route[in_outage] == CLOUD).all()
    else:
        assert (answers.reason[in_outage] == REASON["link-down"]).all()
    # devices begin to connect soon after the outage, so ten seconds are enough
    assert RECONNECT_SECONDS < 5
    assert (answers.route[(answers.time > 60) & is_hard] == CLOUD).all()


@pytest.mark.parametrize(("outage_s", "is_detected"), [(3.0, False), (4.0, True)])
def test_short_outage_delays_answers_and_longer_one_ends_the_connection(
    tmp_path, outage_s, is_detected
):
    """TCP delivers delayed data after a short outage; a longer outage ends the connection."""
    assert 3.0 < DETECT_SECONDS < 4.0
    scenario = make_outage_scenario(tmp_path, f"link:+10s-+{10 + outage_s}s", deadline_ms=20_000.0)
    # one instance in both outages, and one just before the end of the longer one
    fleet_run = run_policy(make_table(), scenario, arrivals=arrivals_at([10.5, 13.9]))
    assert_all_answered(fleet_run)
    if is_detected:
        # the data in the connection are lost, and the second instance has no connection
        assert fleet_run.answers.reason[1] == REASON["link-down"]
    else:
        assert fleet_run.answers.route.tolist() == [CLOUD, CLOUD]
        # the first instance, at 10.5 s, waits for the end of the outage; the second one does not
        assert fleet_run.answers.latency_ms[0] > 1000 * (10 + outage_s - 10.5)
        assert fleet_run.answers.latency_ms[1] < 1000 * outage_s


@pytest.mark.parametrize(("uses_tls", "n_round_trips"), [(False, 3), (True, 4)])
def test_new_connection_starts_with_handshakes(tmp_path, uses_tls, n_round_trips):
    """TCP, TLS 1.3, MQTT and the subscription take one round trip each."""
    round_trip_s = 0.8
    connected_at = 60.0 + RECONNECT_SECONDS + round_trip_s * n_round_trips
    scenario = make_scenario(
        link=write_link(tmp_path, name="l", rtt_ms=800),
        outage=("broker:+50s-+60s",),
        tls=uses_tls,
    )
    fleet_run = run_policy(
        make_table(),
        scenario,
        # in the outage, just before and after the device is connected, and long after it
        arrivals=arrivals_at([55.0, connected_at - 0.01, connected_at + 0.01, 90.0]),
    )
    assert fleet_run.answers.reason.tolist()[:2] == [REASON["link-down"]] * 2
    assert fleet_run.answers.route.tolist() == [FALLBACK, FALLBACK, CLOUD, CLOUD]
    # handshakes add no bytes to a request and do not delay it
    assert fleet_run.answers.bytes_up[3] == fleet_run.answers.bytes_up[2]
    assert abs(fleet_run.answers.latency_ms[3] - fleet_run.answers.latency_ms[2]) < 1e-6


# -- seeds, costs, policies -----------------------------------------------------------------------


def test_request_first_runs_stages_only_for_fallbacks(tmp_path):
    table = make_table(4, 2)
    # every row is offloaded, and the device runs its stages only if no answer comes
    policy = FleetPolicy(
        key="cloud_only", name="All cloud", is_offloaded=table.can_offload, is_cloud_first=True
    )
    scenario = make_scenario(
        link=write_link(tmp_path, name="l", rtt_ms=10), outage=("cloud:+50s-+100s",),
        deadline_ms=1000.0,
    )  # fmt: skip
    timings = msgspec.structs.replace(RUN_TIMINGS, edge_ms=(20.0,))
    answers = run_policy(
        table,
        scenario,
        timings,
        policy=policy,
        arrivals=arrivals_at([0.0, 60.0], row_numbers=[3, 3]),
    ).answers
    assert answers.route.tolist() == [CLOUD, FALLBACK]
    assert answers.device_ms.tolist() == [0.0, 20.0]
    # 5 ms before the deadline of 1000 ms the device begins to run its stage of 20 ms
    assert answers.latency_ms[1] == pytest.approx(995.0 + 20.0)
    assert answers.feature_cost[0] == table.request_only_cost


def test_random_policy_offloads_its_share_of_the_instances():
    table = make_table(10, 0)
    policy = FleetPolicy(
        key="random", name="Random", is_offloaded=table.is_offloaded, random_share=0.25
    )
    scenario = make_scenario(devices=10, time="100s", workload="poisson:4/s")
    answers = run_policy(table, scenario, policy=policy).answers
    assert answers.is_requested.sum() == pytest.approx(0.25 * len(answers), abs=1)
    # the random choice reaches all rows
    assert len(set(answers.row[answers.is_requested])) == len(table.truth)


def test_rows_that_the_cloud_refuses_stay_on_the_device():
    table = make_table(2, 2, cloud_label=np.array([1, -1]))  # the cloud refuses the second row
    policy = FleetPolicy(
        key="system", name="System", is_offloaded=table.is_offloaded & table.can_offload
    )
    fleet_run = run_policy(
        table, make_scenario(), policy=policy, arrivals=arrivals_at([0, 1], row_numbers=[0, 1])
    )
    assert fleet_run.answers.route.tolist() == [CLOUD, EDGE]


def test_timings_must_name_every_stage():
    with pytest.raises(InputError, match="edge_ms has 1 time:"):
        run_policy(make_table(2, 0, last_stage=np.array([0, 1])), make_scenario())


def test_device_starts_with_the_usual_round_trip(tmp_path):
    """The estimate is private, but before the first response it decides when a device retries."""
    link = write_link(tmp_path, name="l", rtt_ms=100)
    table = make_table()
    virtual_fleet = VirtualFleet(
        table, make_scenario(link=link), system_policy(table), RUN_TIMINGS, n_devices=1
    )
    round_trip = virtual_fleet._compute_usual_round_trip()
    assert isinstance(round_trip, RoundTrip)
    # the link's 100 ms and the worker's 10 ms
    assert round_trip.smoothed_s == pytest.approx(0.110, abs=0.002)


# -- samples of large fleets ----------------------------------------------------------------------


@pytest.mark.parametrize(("n_offloaded", "is_complete"), [(1, True), (4, True), (5, False)])
def test_fleet_is_simulated_completely_up_to_a_number_of_requests(n_offloaded, is_complete):
    """20,000 devices with 60 instances each offload 4 or 5 of 10 instances.

    These are 480,000 or 600,000 requests, below or above twice MAX_REQUESTS, which a fleet of this
    size may send.
    """
    table = make_table(10, n_offloaded)
    scenario = make_scenario(devices=MAX_DEVICES, time="1h", workload="poisson:1/min")
    n_devices = choose_n_devices(table, scenario, system_policy(table))
    assert (n_devices == MAX_DEVICES) == is_complete


def make_all_cloud_policy(table) -> FleetPolicy:
    return FleetPolicy(
        key="cloud_only", name="All cloud", is_offloaded=np.ones(len(table.truth), bool)
    )


def test_sample_of_a_large_fleet_has_a_bounded_number_of_instances_and_requests():
    table = make_table(10, 1)  # a tenth of the instances is offloaded
    scenario = make_scenario(devices=10**6, time="1day", workload="poisson:1/min")
    instances_per_device = 1440  # one in each minute of a day
    n_devices = choose_n_devices(table, scenario, system_policy(table))
    assert n_devices * instances_per_device <= MAX_INSTANCES
    n_devices = choose_n_devices(table, scenario, make_all_cloud_policy(table))
    assert n_devices * instances_per_device <= MAX_REQUESTS


def test_at_least_one_device_is_simulated():
    table = make_table(10, 1)
    busy_scenario = make_scenario(devices=5, time="30day", workload="poisson:100/s")
    assert choose_n_devices(table, busy_scenario, make_all_cloud_policy(table)) == 1


@pytest.fixture
def runs_and_figures(tmp_path):
    """Runs of a whole fleet and of a tenth of it, with workers as busy, and their figures."""
    table = make_table(100, 20)
    scenario = make_scenario(
        devices=2000, workers=2, time="300s", workload="poisson:6/min", deadline_ms=500.0,
        link=write_link(tmp_path, name="l", rtt_ms=40, jitter_ms=10, loss=0.01),
    )  # fmt: skip
    timings = Timings(edge_ms=(0.1,), run_us=30_000, instance_us=1000, message_us=1000)
    runs = [run_policy(table, scenario, timings, n_devices=n_devices) for n_devices in (2000, 200)]
    return runs, [make_policy_result(table, scenario, fleet_run) for fleet_run in runs]


@pytest.mark.slow
def test_sample_of_a_fleet_has_the_figures_of_the_whole_fleet(runs_and_figures):
    (whole_run, part_run), (whole_figures, part_figures) = runs_and_figures
    assert whole_run.scale == 1.0
    assert part_run.scale == 10.0  # 2,000 devices over 200
    assert "200 of 2,000 devices" in part_run.sampling
    assert "the load of the whole fleet" in part_run.sampling
    assert whole_run.sampling == "all of 2,000 devices for 5 min"
    assert (part_figures.scale, whole_figures.scale) == (10.0, 1.0)
    # 200 devices have 6,000 instances, 1,200 of them offloaded: standard errors of 1.3 % and 3 %,
    # about a quarter and a third of the tolerances
    assert part_figures.instances == pytest.approx(whole_figures.instances, rel=0.05)
    assert part_figures.bytes.total == pytest.approx(whole_figures.bytes.total, rel=0.1)
    assert part_figures.joules_per_device_day == pytest.approx(
        whole_figures.joules_per_device_day,
        abs=1e-9,  # 0, because the link has no radio
    )
    for quantile_name in ("offloaded_p50", "offloaded_p95"):
        whole_latency = whole_figures.latency_ms[quantile_name].value
        part_latency = part_figures.latency_ms[quantile_name].value
        assert part_latency == pytest.approx(whole_latency, rel=0.1)
    assert part_figures.utilisation == pytest.approx(whole_figures.utilisation, rel=0.1)
    assert part_figures.answers.cloud == pytest.approx(whole_figures.answers.cloud, rel=0.1)
