"""Tests of the summary, the caveats and the key figures of a run."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gatewise.formats import millis, percent
from gatewise_sim.report.document import Figure
from gatewise_sim.report.findings import answer, caveats, key_figures
from tests.sim.report.reports import MEASURED, about, live, made_up


def sentence(report) -> str:
    """Join the two parts of the summary."""
    return "".join(answer(report))


def with_accuracy(report, accuracy):
    """Replace the accuracy of each bin of the timeline by a function of the bin's begin."""
    bins = (replace(b, accuracy=accuracy(b.begin)) for b in report.system.timeline)
    return with_system(report, timeline=tuple(bins))


def with_system(report, **changes):
    """Replace fields of the system's policy."""
    return replace(report, policies=(replace(report.system, **changes), *report.policies[1:]))


def test_summary_states_accuracy_savings_and_latency():
    report = made_up()
    text = sentence(report)
    assert text.startswith(percent(report.system.accuracy.value))
    assert percent(report.policy("cloud_only").accuracy.value) in text
    assert "80 % fewer bytes and 68 % less energy" in text
    assert millis(report.system.latency_ms["p95"].value) in text
    assert "with the cloud down for 10 min" in text
    assert text.endswith(".")
    assert text.count(".") == 1 + len(re.findall(r"\d\.\d", text))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"accuracy": 0.97}, "97.0 % right against 99.0 % for offloading every instance"),
        ({"accuracy": 0.99}, "99.0 % right, the same as offloading every instance"),
        ({"accuracy": None}, "20.0 % of the instances go to the cloud, which takes 80 % fewer"),
        ({"money": 30.0}, "30 instead of 120 EUR a month"),
        ({"money": 30.0, "keys": ("system",)}, "90.0 % right, for 30 EUR a month; "),
        ({"keys": ("system",), "faults": ()}, "90.0 % right; 95 % of the answers come within"),
    ],
)
def test_summary_depends_on_the_known_figures(changes, part):
    assert part in sentence(made_up(**changes))


def test_summary_mentions_wide_intervals():
    wide = Figure(value=0.99, low=0.44, high=1.0)
    report = with_system(made_up(accuracy=0.99), accuracy=wide, offload_rate=about(0.02, 0.01))
    first, _ = answer(report)
    assert "99.0 % right against 99.0 % for offloading every instance" in first
    assert first.endswith("(too few rows to tell more than 44.0 to 100 % right)")
    unlabelled = with_system(
        made_up(accuracy=None), offload_rate=Figure(value=0.0, low=0.0, high=0.56)
    )
    assert answer(unlabelled)[0].endswith("(too few rows to tell more than 0 to 56.0 % offloaded)")


def test_system_without_offloads_has_no_savings():
    report = with_system(made_up(), offload_rate=Figure(value=0.0, low=0.0, high=0.0))
    text = sentence(report)
    assert "less energy" not in text
    assert "no instance leaves its device" in text


def test_broken_promise_is_the_first_sentence():
    report = made_up(promise="The rows break the bundle's promise: 95.0 % are right.")
    assert answer(report)[0] == report.promise
    text = sentence(report)
    assert text == f"{report.promise} {sentence(replace(report, promise=None))}"
    assert report.promise not in caveats(report)


def test_savings_below_100_percent_are_not_rounded_up():
    up = Figure(value=1.0, low=1.0, high=1.0)
    few = replace(made_up().system.bytes, up=up, down=up)
    assert "99.7 % fewer bytes" in sentence(with_system(made_up(), bytes=few))


def test_summary_reports_more_bytes_and_energy_than_all_cloud():
    report = made_up()
    system = report.system
    up = replace(system.bytes.up, value=900.0, low=890.0, high=910.0)
    worse = with_system(report, bytes=replace(system.bytes, up=up), joules_per_device_day=20_000.0)
    assert "27 % more bytes and 42 % more energy" in sentence(worse)


@pytest.mark.parametrize(
    ("accuracy", "part"),
    [
        (lambda t: 0.5 if 1200 <= t < 1800 else 0.9, "accuracy fell to 50.0 % and recovered."),
        (lambda t: 0.89 if 1200 <= t < 1800 else 0.9, "stayed about the same (89.0 %)."),
        (lambda t: 0.5 if t >= 1200 else 0.9, "fell to 50.0 % and has not recovered since."),
        (lambda t: None, "the devices answered 20.0 % of the instances themselves"),
    ],
)
def test_outage_is_reported_with_its_effect_on_accuracy(accuracy, part):
    assert part in sentence(with_accuracy(made_up(), accuracy))


@pytest.mark.parametrize(
    ("report", "part"),
    [
        (made_up(), "1.00 % of the answers are fallbacks (see the run over time)"),
        (made_up(), "Assumed, not measured on this machine: a worker's time for a message"),
        (made_up(accuracy=None), "The rows have no labels"),
        (
            with_system(made_up(), scaled=True, sampling="5 of 100,000 devices"),
            "Simulated 5 of 100,000 devices. The figures are estimates",
        ),
        (live(), "Only Gatewise was run live"),
        (made_up(notes=("a note",), troubles=("a trouble",)), "a note"),
        (with_system(made_up(), utilisation=0.9), "the workers are busy 90 % of the time"),
        (
            with_system(made_up(), answers=replace(made_up().answers, error=7)),
            "7 instances could not be answered",
        ),
    ],
)
def test_caveats_contain_each_limitation(report, part):
    assert part in " ".join(caveats(report))


def test_run_without_limitations_has_no_caveats():
    report = made_up(timings=MEASURED, keys=("system",))
    answers = replace(report.answers, fallback=0)
    assert caveats(with_system(report, answers=answers)) == []


def test_key_figures_come_with_intervals_and_baselines():
    figures = {figure.name: figure for figure in key_figures(made_up(money=30.0))}
    assert figures["accuracy"].value == "90.0 %"
    assert figures["accuracy"].interval == "95 % interval 89.0 to 91.0 %"
    assert figures["accuracy"].note == "all cloud 95.0 %, all edge 82.0 %"
    assert figures["offloaded"].note == "of 1,000 instances"
    assert figures["offloaded: 95 % within"].value == "100 ms"
    assert figures["bytes per instance"].note == "100 up, 50 down; all cloud 750"
    assert figures["cost per month"].value == "30 EUR"
    names = {
        figure.name for figure in key_figures(made_up(accuracy=None, keys=("edge_only", "system")))
    }
    assert not {"accuracy", "cost per month"} & names
