"""Tests of the caveats of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gatewise_sim.report.caveats import list_caveats
from tests.sim.report.reports import MEASURED_TIMINGS, make_live_report, make_report, replace_system


def test_overload_of_the_workers_is_stated_with_its_fallbacks():
    report = make_report()
    answers = replace(report.answers, cloud=0.0, fallback=0.4 * report.system.instances)
    overloaded_report = replace_system(report, utilisation=1.0, answers=answers)
    text = " ".join(list_caveats(overloaded_report))
    assert "more than they can do: 40.0 % of the answers are fallbacks" in text
    assert "a little more load" not in text


@pytest.mark.parametrize(
    ("report", "expected_text"),
    [
        (
            make_report(),
            "1.00 % of the answers are fallbacks (see the run over time): the cloud was not",
        ),
        (
            replace_system(make_report(), reasons={"value": 3.0, "timeout": 7.0}),
            "in time, and 3 of them had missing values or exceeded the limit of offloads, so",
        ),
        (
            replace_system(
                make_report(),
                answers=replace(make_report().answers, fallback=9, error=2),
                reasons={"value": 4.0, "offload-limit": 7.0},
            ),
            "(see the run over time): 9 of them had missing values or exceeded the limit",
        ),
        (make_report(), "Assumed, not measured on this machine: a worker's time for a message"),
        (make_report(accuracy=None), "The rows have no labels"),
        (
            replace_system(make_report(), scale=20_000.0, sampling="5 of 100,000 devices"),
            "Simulated 5 of 100,000 devices. The figures are estimates",
        ),
        (make_live_report(), "Only Gatewise was run live"),
        (make_report(notes=("a note",), troubles=("a trouble",)), "a note"),
        (replace_system(make_report(), utilisation=0.9), "the workers are busy 90 % of the time"),
        (
            replace_system(make_report(), answers=replace(make_report().answers, error=7)),
            "7 instances could not be answered",
        ),
    ],
)
def test_caveats_contain_each_limitation(report, expected_text):
    assert expected_text in " ".join(list_caveats(report))


def test_run_without_limitations_has_no_caveats():
    report = make_report(timings=MEASURED_TIMINGS, keys=("system",))
    answers = replace(report.answers, fallback=0)
    assert list_caveats(replace_system(report, answers=answers)) == []


def test_broken_promise_is_in_the_summary_but_not_in_the_caveats():
    report = make_report(promise="The rows break the bundle's promise: 95.0 % are right.")
    assert report.promise not in list_caveats(report)
