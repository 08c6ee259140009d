"""Tests of the summary, the key figures and the audits of a run."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gatewise.formats import millis, percent
from gatewise_sim.report.findings import audit_findings, key_figures, summary_sentence
from gatewise_sim.report.policy_result import AuditUse, Estimate
from tests.sim.report.reports import make_estimate, make_report, replace_system


def join_summary(report) -> str:
    """Join the two parts of the summary."""
    return "".join(summary_sentence(report))


def replace_accuracy(report, accuracy_at):
    """Replace the accuracy of each bin of the timeline by a function of the bin's begin."""
    time_bins = (
        replace(time_bin, accuracy=accuracy_at(time_bin.begin))
        for time_bin in report.system.timeline
    )
    return replace_system(report, timeline=tuple(time_bins))


def test_summary_states_accuracy_savings_and_latency():
    report = make_report()
    summary = join_summary(report)
    assert summary.startswith(percent(report.system.accuracy.value))
    assert percent(report.find_policy("cloud_only").accuracy.value) in summary
    # A fifth of the bytes of all cloud; 2400 * (5 * 0.2 + 0.75) + 300 = 4500 J a day instead of
    # 2400 * (5 + 0.75) + 300 = 14,100 J.
    assert "80 % fewer bytes and 68 % less energy" in summary
    assert millis(report.system.latency_ms["p95"].value) in summary
    assert "with the cloud down for 10 min" in summary
    assert summary.endswith(".")
    # One sentence: every other point is a decimal point.
    assert summary.count(".") == 1 + len(re.findall(r"\d\.\d", summary))


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ({"accuracy": 0.97}, "97.0 % right against 99.0 % for offloading every instance"),
        ({"accuracy": 0.99}, "99.0 % right, the same as offloading every instance"),
        ({"accuracy": None}, "20.0 % of the instances go to the cloud, which takes 80 % fewer"),
        ({"money": 30.0}, "30 instead of 120 EUR a month"),
        ({"money": 30.0, "keys": ("system",)}, "90.0 % right, for 30 EUR a month; "),
        ({"keys": ("system",), "faults": ()}, "90.0 % right; 95 % of the answers come within"),
    ],
)
def test_summary_depends_on_the_known_figures(changes, expected_text):
    assert expected_text in join_summary(make_report(**changes))


def make_report_of_fallbacks(reason, n_cloud):
    """Make a report without outages in which nearly all offloads are fallbacks for one reason."""
    report = make_report(faults=())
    counts = replace(report.system.answers, cloud=n_cloud, fallback=200 - n_cloud)
    return replace_system(report, answers=counts, reasons={reason: 200.0 - n_cloud})


@pytest.mark.parametrize(
    ("reason", "n_cloud", "beginning"),
    [
        ("timeout", 0, "No answer of the cloud comes within the deadline of 500 ms"),
        ("breaker-open", 9, "Hardly any answer of the cloud comes within the deadline of 500 ms"),
        ("cloud:busy", 9, "Hardly any answer of the cloud comes within the deadline of 500 ms"),
        ("timeout", 10, "90.0 % right"),  # 10 of 200 are 5 %
        ("offload-limit", 0, "90.0 % right"),
        ("link-down", 0, "90.0 % right"),
    ],
)
def test_summary_says_whether_the_cloud_is_too_late(reason, n_cloud, beginning):
    assert join_summary(make_report_of_fallbacks(reason, n_cloud)).startswith(beginning)


def test_summary_mentions_wide_intervals():
    wide_estimate = Estimate(value=0.99, low=0.44, high=1.0)
    report = replace_system(
        make_report(accuracy=0.99), accuracy=wide_estimate, offload_rate=make_estimate(0.02, 0.01)
    )
    main_clause = summary_sentence(report).main_clause
    assert "99.0 % right against 99.0 % for offloading every instance" in main_clause
    assert main_clause.endswith("(too few rows to tell more than 44.0 to 100 % right)")
    unlabelled = replace_system(
        make_report(accuracy=None), offload_rate=Estimate(value=0.0, low=0.0, high=0.56)
    )
    assert summary_sentence(unlabelled).main_clause.endswith(
        "(too few rows to tell more than 0 to 56.0 % offloaded)"
    )


def test_system_without_offloads_has_no_savings():
    report = replace_system(make_report(), offload_rate=Estimate(value=0.0, low=0.0, high=0.0))
    summary = join_summary(report)
    assert "less energy" not in summary
    assert "no instance leaves its device" in summary


def test_broken_promise_is_the_first_sentence():
    report = make_report(promise="The rows break the bundle's promise: 95.0 % are right.")
    assert summary_sentence(report).main_clause == report.promise
    summary = join_summary(report)
    assert summary == f"{report.promise} {join_summary(replace(report, promise=None))}"


def test_savings_below_100_percent_are_not_rounded_up():
    small_estimate = Estimate(value=1.0, low=1.0, high=1.0)
    # 2 instead of 750 bytes save 99.73 %.
    few_bytes = replace(make_report().system.bytes, up=small_estimate, down=small_estimate)
    assert "99.7 % fewer bytes" in join_summary(replace_system(make_report(), bytes=few_bytes))


def test_summary_reports_more_bytes_and_energy_than_all_cloud():
    report = make_report()
    system = report.system
    large_estimate = replace(system.bytes.up, value=900.0, low=890.0, high=910.0)
    worse_report = replace_system(
        report, bytes=replace(system.bytes, up=large_estimate), joules_per_device_day=20_000.0
    )
    # 900 + 50 bytes instead of 750, and 20,000 J a day instead of 14,100.
    assert "27 % more bytes and 42 % more energy" in join_summary(worse_report)


@pytest.mark.parametrize(
    ("accuracy_at", "expected_text"),
    [  # the outage of the report lasts from 1200 s to 1800 s
        (
            lambda time: 0.5 if 1200 <= time < 1800 else 0.9,
            "accuracy fell to 50.0 % and recovered.",
        ),
        (lambda time: 0.89 if 1200 <= time < 1800 else 0.9, "stayed about the same (89.0 %)."),
        (lambda time: 0.5 if time >= 1200 else 0.9, "fell to 50.0 % and has not recovered since."),
        (lambda time: None, "the devices answered 20.0 % of the instances themselves"),
    ],
)
def test_outage_is_reported_with_its_effect_on_accuracy(accuracy_at, expected_text):
    assert expected_text in join_summary(replace_accuracy(make_report(), accuracy_at))


def test_drop_in_an_outage_that_can_be_chance_is_no_effect():
    report = make_report()
    # nine tenths are right in the outage, and all of the few answers before
    time_bins = tuple(
        replace(
            time_bin,
            instances=100.0 if 1200 <= time_bin.begin < 1800 else 0.1,
            accuracy=0.9 if 1200 <= time_bin.begin < 1800 else 1.0,
        )
        for time_bin in report.system.timeline
    )
    assert "stayed about the same" in join_summary(replace_system(report, timeline=time_bins))


@pytest.mark.parametrize(("scale", "expected_text"), [(1.0, "fell to"), (50.0, "about the same")])
def test_chance_depends_on_the_simulated_instances(scale, expected_text):
    """A bin counts the instances of the whole fleet, of which a part is simulated."""
    report = replace_accuracy(make_report(), lambda time: 0.93 if 1200 <= time < 1800 else 0.95)
    time_bins = tuple(
        replace(time_bin, instances=50 * time_bin.instances) for time_bin in report.system.timeline
    )
    assert expected_text in join_summary(replace_system(report, timeline=time_bins, scale=scale))


def test_outage_without_fallbacks_has_no_effect():
    report = replace_accuracy(make_report(), lambda time: 0.5 if time >= 1200 else 0.9)
    time_bins = tuple(replace(time_bin, fallback=0.0) for time_bin in report.system.timeline)
    summary = join_summary(replace_system(report, timeline=time_bins))
    assert "no answer was a fallback" in summary
    assert "fell" not in summary


def test_key_figures_come_with_intervals_and_baselines():
    figures = {figure.name: figure for figure in key_figures(make_report(money=30.0))}
    assert figures["accuracy"].value == "90.0 %"
    assert figures["accuracy"].interval == "95 % interval 89.0 to 91.0 %"
    assert figures["accuracy"].note == "all cloud 95.0 %, all edge 82.0 %"
    assert figures["offloaded"].note == "of 1,000 instances"
    assert figures["offloaded: 95 % within"].value == "100 ms"
    assert figures["bytes per instance"].note == "100 up, 50 down; all cloud 750"
    assert figures["cost per month"].value == "30 EUR"
    figure_names = {
        figure.name
        for figure in key_figures(make_report(accuracy=None, keys=("system", "edge_only")))
    }
    assert not {"accuracy", "cost per month"} & figure_names


def test_audit_findings_state_after_how_many_instances_a_test_raised_its_alarm():
    audit = AuditUse(
        compared=50, agreement=0.9, promised=0.98, bytes=3.0, alarms=2, alarm_instances=1200
    )
    report = replace_system(make_report(), audit=audit)
    expected_text = "2 tests of the workers raised an alarm, the first one after 1,200 instances."
    assert audit_findings(report).endswith(expected_text)
    assert audit_findings(make_report()) == ""
