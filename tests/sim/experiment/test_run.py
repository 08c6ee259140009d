"""Tests of simulations of a real bundle: figures, policies, outages and errors."""

import pytest

from gatewise.errors import InputError
from gatewise_sim import simulate
from gatewise_sim.fleet.results import ROUTES
from gatewise_sim.report.document import Report
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_timings")]

POLICY_KEYS = ["system", "edge_only", "cloud_only", "confidence", "random", "oracle"]
#: Given timings, so that reports do not depend on the machine.
TIMINGS = Timings(edge_ms=(0.05, 0.08), run_us=115, instance_us=29)
QUICK_SCENARIO = Scenario(
    devices=20, time="10min", workload="poisson:6/min", link="wifi", seed=3, timings=TIMINGS
)


def simulate_briefly(digits, **changes) -> Report:
    """Simulate the small system briefly and return the report."""
    return simulate(
        digits.bundle, digits.rows, digits.truth, scenario=QUICK_SCENARIO, **changes
    ).report


@pytest.fixture(scope="module")
def full_report(digits, make_once):
    """The report of all policies."""
    return make_once("full-report", lambda _: simulate_briefly(digits))


def test_all_policies_answer_the_same_instances(full_report):
    assert (full_report.settings["devices"], full_report.timings) == (20, TIMINGS)
    assert full_report.transport.link == "wifi"
    assert [policy.key for policy in full_report.policies] == POLICY_KEYS
    for policy in full_report.policies:
        assert policy.instances == full_report.instances
        assert sum(getattr(policy.answers, route) for route in ROUTES) == full_report.instances
        assert policy.answers.lost == 0
    offload_rate = full_report.offload_rate
    for key in ("confidence", "random"):  # within the instances of one row
        assert full_report.find_policy(key).offload_rate.value == pytest.approx(
            offload_rate, abs=0.01
        )
    accuracies = {policy.key: policy.accuracy.value for policy in full_report.policies}
    assert accuracies["oracle"] == max(accuracies.values())
    assert full_report.find_policy("edge_only").offload_rate.value == 0
    assert full_report.find_policy("cloud_only").offload_rate.value == 1


def test_report_is_the_same_for_the_same_seed_and_timings(digits):
    report, repeated_report, other_report = (
        simulate_briefly(digits, devices=5, outage=("cloud:+200s-+300s",), seed=seed)
        for seed in (3, 3, 9)
    )
    assert report.to_json() == repeated_report.to_json()
    assert report.answers != other_report.answers


def test_outage_causes_fallbacks_and_lower_accuracy(digits):
    undisturbed_report = simulate_briefly(digits, baselines=False)
    report = simulate_briefly(digits, outage=("cloud:+200s-+400s",), baselines=False)
    assert undisturbed_report.faults == ()
    assert [(fault.what, fault.begin, fault.end) for fault in report.faults] == [
        ("cloud", 200.0, 400.0)
    ]
    assert report.instances == undisturbed_report.instances
    timeline = report.system.timeline
    outage_bins = [
        time_bin for time_bin in timeline if time_bin.begin >= 200 and time_bin.end <= 400
    ]
    # the breakers have closed
    later_bins = [time_bin for time_bin in timeline if time_bin.begin >= 430]
    assert sum(time_bin.cloud for time_bin in outage_bins) == 0
    # of 20 devices with 20 instances each in this time, many of which the system would offload
    assert sum(time_bin.fallback for time_bin in outage_bins) > 30
    for time_bin in outage_bins:
        assert time_bin.accuracy == pytest.approx(time_bin.edge_accuracy)
    assert sum(time_bin.cloud for time_bin in later_bins) > 0


def test_prices_and_energy_are_read_from_files(digits, tmp_path):
    (tmp_path / "prices.toml").write_text("per_worker_hour = 1\nper_mb = 1\n")
    (tmp_path / "pi.toml").write_text("idle_w = 0.01\nbattery_wh = 20\nfeature_j = 0.002\n")
    report = simulate_briefly(
        digits, prices=str(tmp_path / "prices.toml"), device_energy=str(tmp_path / "pi.toml")
    )
    assert report.money == report.system.money
    assert report.system.money.workers == pytest.approx(730.5)  # hours of a month, at 1 per hour
    assert report.find_policy("edge_only").money.total == 0.0
    assert report.energy.battery_wh == 20
    # Each feature costs 1 and takes 0.002 J. 20 devices run for 600 s of a day; idling at 0.01 W
    # takes 864 J a day, and the battery holds 20 Wh or 72,000 J.
    for policy in report.policies:
        assert policy.joules.features == pytest.approx(0.002 * policy.feature_cost.value)
        active_joules = policy.joules.total * policy.instances / 20 * 86_400 / 600
        assert policy.joules_per_device_day == pytest.approx(active_joules + 864, rel=1e-9)
        assert policy.battery_days == pytest.approx(72_000 / (active_joules + 864), rel=1e-9)


def test_drifting_class_mix_changes_the_answers(digits):
    mix = "steps,0s=1/1/0/0/0/0/0/0/0/0,5min=0/0/0/0/0/0/0/0/1/1"
    report = simulate_briefly(digits, mix=mix, baselines=False)
    assert [
        class_result.label for class_result in report.system.classes if class_result.instances
    ] == ["0", "1", "8", "9"]
    with pytest.raises(InputError, match="need the rows' labels"):
        simulate(digits.bundle, digits.rows, scenario=QUICK_SCENARIO, mix=mix)
    labels = digits.truth.copy()
    labels[0] = 99
    with pytest.raises(InputError, match="mix: 1 rows have a label that is not a class"):
        simulate(digits.bundle, digits.rows, labels, scenario=QUICK_SCENARIO, mix=mix)


def test_audits_detect_changed_data(digits):
    """After 5 minutes only nines arrive, on which the device errs more often than it promises."""
    mix = f"steps,0s={'1/' * 9}1,5min={'0/' * 9}1"
    unaudited_system = simulate_briefly(digits, mix=mix, baselines=False).system
    report = simulate_briefly(digits, mix=mix, audit=0.2)
    system, audit = report.system, report.system.audit
    # audits change no answer; they add bytes, energy and load on the workers
    assert system.accuracy == unaudited_system.accuracy
    assert system.offload_rate == unaudited_system.offload_rate
    assert system.feature_cost == unaudited_system.feature_cost
    assert audit.compared == report.answers.audits == system.workers["audits"]
    assert 0.15 < audit.compared / report.answers.edge < 0.25
    assert audit.promised < 1
    assert system.bytes.total - unaudited_system.bytes.total == pytest.approx(audit.bytes, rel=0.01)
    assert system.joules.radio > unaudited_system.joules.radio
    assert all(policy.audit is None for policy in report.policies[1:])
    assert audit.alarms == 1
    assert audit.alarm_instances > 0


def test_run_without_labels_has_no_accuracy(digits):
    report = simulate(digits.bundle, digits.rows, scenario=QUICK_SCENARIO).report
    assert report.accuracy == {"system": None, "edge_only": None, "cloud_only": None}
    assert [policy.key for policy in report.policies] == POLICY_KEYS[:-1]  # no oracle
    assert all(policy.accuracy is None for policy in report.policies)
    assert not report.has_labels


def test_unknown_class_counts_as_wrong(digits):
    labels = digits.truth.astype(object)
    labels[:100] = "other"
    report = simulate(
        digits.bundle,
        digits.rows,
        labels,
        scenario=QUICK_SCENARIO,
        baselines=False,
        workload="periodic:1s",
    ).report
    # a third of the rows are wrong, less a fifth of that because instances are drawn at random
    assert report.accuracy["system"] < 1 - 0.8 * 100 / len(labels)
    assert "100 of 300 rows have a label that is no class of the bundle" in report.notes[0]
    assert sum(class_result.instances for class_result in report.system.classes) < report.instances


def test_broken_promise_is_reported_first(digits):
    is_nine = digits.truth == 9
    simulation = simulate(
        digits.bundle,
        digits.rows[is_nine],
        digits.truth[is_nine],
        scenario=QUICK_SCENARIO,
        baselines=False,
    )
    assert simulation.summary.startswith("The rows break the bundle's promise")


def test_outage_outside_the_run_is_noted(digits):
    early_scenario = QUICK_SCENARIO.changed(
        outage=("cloud:12:00-12:10", "link:+20min-+30min"), baselines=False
    )
    noon_scenario = early_scenario.changed(day_start="11:55", time="30min")
    for scenario, components in ((early_scenario, ["cloud", "link"]), (noon_scenario, [])):
        notes = simulate(digits.bundle, digits.rows, scenario=scenario).report.notes
        assert [
            note.split()[4] for note in notes if note.startswith("The outage of the")
        ] == components


@pytest.mark.usefixtures("nothing_left")
def test_live_run_uses_another_operating_point(digits):
    scenario = Scenario(
        devices=4, time="2s", workload="poisson:5/s", link="wifi", deadline_ms=4000.0,
        engine="live", offload_rate=0.3, seed=1,
    )  # fmt: skip
    report = simulate(digits.bundle, digits.rows, digits.truth, scenario=scenario).report
    assert report.engine == "live"
    assert [policy.engine for policy in report.policies] == ["live"] + ["virtual"] * 5
    assert (report.transport.kind, report.transport.link) == ("mqtt", "wifi")
    assert report.answers.lost == 0
    assert report.troubles == ()
    # every row has the same outcome as in virtual time
    assert report.checked.differing == {"labels": 0, "routes": 0, "costs": 0}
    fallbacks = report.answers.fallback
    # of 4 * 2 s * 5/s = 40 instances on average
    assert report.checked.compared == report.instances - fallbacks > 20
    live_figures, virtual_figures = report.twin.live, report.twin.virtual
    assert live_figures["offload_rate"] == virtual_figures["offload_rate"]
    assert set(live_figures) == set(virtual_figures)
    assert report.frontier.active.offload_rate <= 0.3
