"""Tests of the virtual broker, and of the state of connections during outages."""

import numpy as np
import pytest

from gatewise_sim.fleet.broker import DETECT_SECONDS, RECONNECT_SECONDS, Availability
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.outages import Outages
from tests.support.fleets import arrivals_at, make_scenario, make_table, run_policy


def test_broker_sends_requests_to_workers_in_turn():
    fleet = run_policy(
        make_table(), make_scenario(workers=3, max_batch=1), arrivals=arrivals_at(np.zeros(10))
    )
    # Each of the three workers needs 10 ms for a request.
    assert fleet.answers.latency_ms == pytest.approx(10.0 * (1 + np.arange(10) // 3))


@pytest.mark.parametrize("extra_seconds", [-0.5, 0.0, 0.5])
def test_outage_breaks_connections_if_longer_than_its_detection(extra_seconds):
    """A shorter outage only delays messages, and the devices stay connected."""
    clock = Clock()
    begin, end = 30.0, 30.0 + DETECT_SECONDS + extra_seconds
    outages = Outages.parse([f"link:+{begin:g}s-+{end:g}s"], run_seconds=120.0)
    availability = Availability(clock, outages, [])
    is_connected_at = {}
    delivers_at = {}

    def record_state(time: float) -> None:
        is_connected_at[time] = availability.is_connected
        delivers_at[time] = availability.link_delivers

    # Before the outage, during it, on both sides of its detection, and after it but before devices
    # start new connections.
    times = [29.0, 31.0, 30.0 + DETECT_SECONDS - 1e-6, 30.0 + DETECT_SECONDS + 1e-6, end + 0.25]
    for time in times:
        clock.call_at(time, record_state, time)
    clock.run(120.0)
    is_detected = extra_seconds > 0
    assert all(is_connected_at[time] for time in times[:3])
    assert [is_connected_at[time] for time in times[3:]] == [not is_detected] * 2
    assert [delivers_at[time] for time in times[:3]] == [True, not is_detected, not is_detected]
    assert availability.reconnect_at == (end + RECONNECT_SECONDS if is_detected else 0.0)
