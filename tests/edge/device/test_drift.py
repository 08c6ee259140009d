"""The alarm comes soon when the rate has left its band, and almost never while it has not."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.device.drift import Drift, _bet
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import HARD, cloud_says

EASY = [1.0, 0, 0, 0, 0, 0]


def run(drift: Drift, rate: float, n: int, rng: np.random.Generator) -> int | None:
    """Instances until the first alarm."""
    for i, sent in enumerate((rng.random(n) < rate).tolist()):
        drift.observe(sent)
        if drift.alarms:
            return i + 1
    return None


@pytest.mark.parametrize("end", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("times", [0.25, 0.8, 1.25, 4.0])
def test_a_bet_is_fair_at_the_bands_end_and_unfavourable_within(end, times):
    sent, not_sent = _bet(end, times)
    assert end * sent + (1 - end) * not_sent == pytest.approx(1.0)
    within = end * 0.9 if times > 1 else end + 0.1 * (1 - end)
    assert within * sent + (1 - within) * not_sent < 1.0


def test_no_sooner_than_promised_even_at_the_bands_ends():
    # Mean time to a false alarm at least 2000; the means of 60 runs vary by an eighth of that.
    for rate in (0.15, 0.05):
        rng = np.random.default_rng(0)
        until = [
            run(Drift(0.1, tolerance=0.05, run_length=2000.0), rate, 8000, rng) or 8000
            for _ in range(60)
        ]
        assert np.mean(until) > 2000


@pytest.mark.parametrize(("rate", "within"), [(0.4, 100), (0.25, 400), (0.0, 400)])
def test_soon_after_a_drift_however_late_it_comes(rate, within):
    rng = np.random.default_rng(2)
    for calm in (0, 20_000):
        drift = Drift(0.1)
        assert run(drift, 0.1, calm, rng) is None
        found = run(drift, rate, 2000, rng)
        assert found is not None
        assert found < within
        assert drift.state == ("above" if rate > 0.1 else "below")


def test_one_alarm_a_drift_and_calm_again_after_it():
    told = []
    drift = Drift(0.1, on_alarm=lambda *a: told.append(a))
    rng = np.random.default_rng(3)
    for rate in (0.1, 0.3, 0.1, 0.3):
        for sent in rng.random(6000) < rate:
            drift.observe(bool(sent))
        assert drift.state == ("above" if rate > 0.1 else "")
    assert drift.alarms == 2
    assert [side for side, _ in told] == ["above", "above"]
    assert all(0.15 < rate < 0.4 for _, rate in told)


def test_ends_that_cannot_be_crossed_are_not_bet_on():
    always = Drift(1.0, tolerance=0.1)
    never = Drift(0.0, tolerance=0.1)
    for _ in range(2000):
        always.observe(True)
        never.observe(False)
    assert always.alarms == never.alarms == 0
    for _ in range(200):
        always.observe(False)
        never.observe(True)
    assert (always.state, never.state) == ("below", "above")
    idle = Drift(0.5, tolerance=1.0)
    for _ in range(100):
        idle.observe(True)
    assert idle.alarms == 0


def test_settings_are_checked():
    for settings in ({"expected": 1.5}, {"tolerance": 0.0}, {"run_length": 1.0}):
        with pytest.raises(InputError, match="drift"):
            Drift(**({"expected": 0.5} | settings))


def test_a_device_counts_and_logs_it(bundle, caplog):
    # The operating point expects a rate of 0.2.
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        for i in range(500):
            device.answer(HARD if i % 5 == 0 else EASY)
        assert device.counters["drift_alarms"] == 0
        assert device.gauges["drift"] == 0.0
        for _ in range(200):
            device.answer(HARD)
        assert device.counters["drift_alarms"] == 1
        assert device.gauges["drift"] == 1.0
    assert "may have drifted" in caplog.text
