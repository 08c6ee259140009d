"""Tests of the reasons that the lines of live devices have in a report."""

import pytest

from gatewise_sim.fleet.results import REASONS
from gatewise_sim.live import lines


@pytest.mark.parametrize(
    ("route", "reason", "report_reason"),
    [
        ("edge", "last-stage", "stopped"),
        ("cloud", "cloud-only", "offloaded"),
        ("cloud", "implausible:pixel_1", "offloaded"),
        ("edge", "implausible:pixel_1", "stopped"),
        ("fallback", "cloud:shutdown", "cloud:busy"),
        ("fallback", "sensor:pixel_1", "value"),
    ],
)
def test_reason_of_a_line_is_one_of_the_report(route, reason, report_reason):
    line = {"route": route, "reason": reason}
    assert REASONS[lines._find_reason_index(line)] == report_reason
