"""Tests of the columns that a report makes from the lines of live devices."""

import numpy as np
import pytest

from gatewise_sim.fleet.results import REASONS
from gatewise_sim.live import lines
from tests.support.fleets import arrivals_at, make_scenario, make_table


@pytest.mark.parametrize(
    ("route", "reason", "report_reason"),
    [
        ("edge", "last-stage", "stopped"),
        ("cloud", "cloud-only", "offloaded"),
        ("cloud", "implausible:pixel_1", "offloaded"),
        ("cloud", "missing", "offloaded"),
        ("cloud", "sensor:pixel_1", "offloaded"),
        ("edge", "implausible:pixel_1", "stopped"),
        ("fallback", "cloud:shutdown", "cloud:busy"),
        ("fallback", "sensor:pixel_1", "value"),
    ],
)
def test_reason_of_a_line_is_one_of_the_report(route, reason, report_reason):
    line = {"route": route, "reason": reason}
    assert REASONS[lines._find_reason_index(line)] == report_reason


def test_device_that_a_busy_worker_told_to_wait_has_sent_no_request():
    # an answer costs 1 without a request, and 3.125 with an unanswered one
    line = {"route": "fallback", "reason": "cloud:busy", "stage": 0, "label": "0"}
    lines_of_rows = {0: line | {"cost": 1.0}, 1: line | {"cost": 3.125}}
    scenario = make_scenario()
    answers = lines.answer_columns(
        scenario, make_table(), arrivals_at([0.0, 1.0]), lines_of_rows, [], {}
    )
    assert answers.is_requested.tolist() == [False, True]
    assert answers.feature_cost.tolist() == [1.0, 3.0]
    free_table = make_table(request_cost=np.ones(10), request_price=0.0)  # the costs do not tell
    answers = lines.answer_columns(
        scenario, free_table, arrivals_at([0.0]), {0: line | {"cost": 1.0}}, [], {}
    )
    assert answers.is_requested.tolist() == [True]
