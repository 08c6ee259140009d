"""Tests of the energy of radios and devices, and of the bill."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.costs import FeatureCosts
from gatewise_sim.fleet.energy import MONTH, RADIOS, DeviceEnergy, Prices, Radio, Usage
from gatewise_sim.fleet.energy import radio_joules as fleet_joules
from tests.support.refused import refused_file

# Exact in binary, so that sums can be compared with ==.
PLAIN = Radio(name="x", wake_w=2, wake_s=0.5, active_w=4, tail_w=1, tail_s=8)
WAKE_J = 2 * 0.5

exchanges = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 24), st.integers(0, 5000), st.integers(0, 5000)),
    min_size=1,
    max_size=40,
)  # (quarter seconds since the one before began, quarter seconds long, up, down)


def laid_out(steps):
    now, spans = 0.0, []
    for gap, length, up, down in steps:
        now += gap / 4
        spans.append((now, now + length / 4, up, down))
    return spans


def joules(radio: Radio, *spans, device=None) -> np.ndarray:
    """Energy that each of one device's (begin, end[, up, down]) adds."""
    begin, end, up, down = (np.array(c) for c in zip(*((*s, 0, 0)[:4] for s in spans), strict=True))
    numbers = np.zeros(len(spans), np.int64) if device is None else np.array(device)
    return fleet_joules(radio, numbers, begin, end, up=up, down=down)


def integral(radio: Radio, steps) -> float:
    """Energy of the states without bytes, by going through time a quarter second at a time."""
    last = max(end for _, end, _, _ in steps)
    active = np.zeros(round(4 * (last + radio.tail_s)) + 1, dtype=bool)
    for begin, until, _, _ in steps:
        active[round(4 * begin) : round(4 * until)] = True
    spent, wakes, awake_until = 0.0, 0, -1.0
    starts = {begin for begin, _, _, _ in steps}
    for tick in range(len(active)):
        now = tick / 4
        if now in starts:
            wakes += now > awake_until
        ended = [end for begin, end, _, _ in steps if begin <= now and end <= now]
        if active[tick]:
            spent += radio.active_w / 4
            awake_until = now + 0.25 + radio.tail_s
        else:
            if ended:
                awake_until = max(awake_until, max(ended) + radio.tail_s)
            if now < awake_until:
                spent += radio.tail_w / 4
    return spent + wakes * radio.wake_w * radio.wake_s


@given(exchanges)
def test_energy_is_the_integral_over_the_radio_states(steps):
    spans = laid_out(steps)
    assert joules(PLAIN, *spans).sum() == integral(PLAIN, spans)  # PLAIN's bytes cost nothing


@given(exchanges, st.sampled_from(sorted(RADIOS)), st.integers(1, 5), st.randoms())
def test_energy_of_a_fleet_is_the_sum_over_its_devices(steps, name, n_devices, random):
    radio = RADIOS[name]
    rows = sorted((random.randrange(n_devices), *span) for span in laid_out(steps))
    alone = [[span for device, *span in rows if device == d] for d in range(n_devices)]
    singly = np.concatenate([joules(radio, *spans) for spans in alone if spans])
    # In any order: here by time, and back.
    order = sorted(range(len(rows)), key=lambda i: rows[i][1])
    together = np.empty(len(rows))
    together[order] = joules(
        radio, *(rows[i][1:] for i in order), device=[rows[i][0] for i in order]
    )
    if len({(row[0], row[1]) for row in rows}) == len(rows):  # else the tail is either one's
        assert together.tolist() == singly.tolist()


def test_radio_is_awake_at_the_end_of_its_tail():
    _, awake, asleep = joules(
        PLAIN, (0.0, 1.0), (9.0, 9.0), (np.nextafter(17.0, 18), 17.5)
    ).tolist()
    assert awake == 8.0  # the tail that ran, and no waking up
    assert asleep > 8.0 + WAKE_J


def test_overlapping_exchanges_are_active_once():
    assert joules(PLAIN, (0.0, 4.0), (1.0, 3.0), (3.0, 6.0)).tolist()[1:] == [0.0, 8.0]


def test_radios_have_the_figures_of_the_papers():
    lte, wifi = RADIOS["lte"], RADIOS["wifi"]
    tail = 1.060 * 11.576
    assert tail == pytest.approx(12.27, abs=0.01)
    # By hand: a whole tail, waking up, 0.1 s at 1.288 W, and 340 bytes up, 190 down with headers.
    payload = 1e-6 * (438.39 * 8e-3 * 340 + 51.97 * 8e-3 * 190)
    assert joules(lte, (0.0, 0.1, 300, 150)) == pytest.approx(
        tail + 1.2107 * 0.2601 + 0.128804 + payload
    )
    # 1288 mW + 438 mW per Mbit/s: a second at 5 Mbit/s of IP bytes.
    spent = lte.active_w + 1e-6 * lte.up_uj_per_byte * 625_000
    assert spent == pytest.approx(1.28804 + 0.43839 * 5)
    # Feeney and Nilsson: 1.9 uJ/byte + 420 uJ out, 0.42 uJ/byte + 330 uJ in.
    assert wifi.payload_joules(960, 0) == pytest.approx(1e-6 * (1.9 * 1000 + 420))
    assert wifi.payload_joules(0, 1500) == pytest.approx(1e-6 * (0.42 * 1580 + 2 * 330))
    assert joules(RADIOS["none"], (0.0, 5.0, 10**6, 10**6)) == 0.0


# -- devices ------------------------------------------------------------------------------------

NAMES = ("age", "ecg", "thal")


def test_device_energy_is_read_from_a_file(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(
        "idle_w = 0.02\nbattery_wh = 10\nstage_j = [0.5, 0.25]\nfeature_j = 1\n"
        "[features]\necg = 4\n"
    )
    device = DeviceEnergy.from_file(file, NAMES, 2)
    acquired = np.array([[True, True, False], [False, True, True]])
    assert device.feature_joules(acquired, NAMES).tolist() == [5.0, 5.0]
    assert device.stage_joules(2).tolist() == [0.0, 0.5, 0.75]
    radio = Radio(name="x", idle_w=0.005)
    assert device.battery_days(440.0, radio) == pytest.approx(36_000 / (440 + 0.025 * 86_400))


def test_empty_file_means_no_energy(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text("")
    device = DeviceEnergy.from_file(file, NAMES, 2)
    assert device.feature_joules(np.ones((1, 3), bool), NAMES).tolist() == [0.0]
    assert device.stage_joules(2).tolist() == [0.0, 0.0, 0.0]
    assert device.battery_days(5.0, RADIOS["lte"]) is None
    assert DeviceEnergy(battery_wh=1.0).battery_days(0.0, RADIOS["lte"]) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("idle = 1", "has an unknown key 'idle'; there are idle_w"),
        ("battery_wh = 0", "battery_wh: must be a number above 0, not 0"),
        ("stage_j = [1]", "stage_j: has 1 entries; 2 stages run on the device"),
        ("stage_j = [1, nan]", "stage_j[1]: must be a number of at least 0, not NaN"),
        ("[features]\npulse = 1", "features.pulse: the bundle has no such feature"),
        ("[features]\necg = -1", "features.ecg: must be a number of at least 0, not -1"),
    ],
)
def test_error_of_an_invalid_device_file_names_the_key(tmp_path, text, complaint):
    read = partial(DeviceEnergy.from_file, names=NAMES, n_stages=2)
    refused_file(read, tmp_path / "device.toml", text, complaint)


def test_battery_days_follow_from_capacity_and_use():
    # 18650 cell of 12.6 Wh: 453.6 J a day of work and 0.001 W at rest.
    cell = DeviceEnergy(idle_w=0.001, battery_wh=12.6)
    assert cell.battery_days(453.6 - 86.4, RADIOS["none"]) == pytest.approx(100.0)


# -- money --------------------------------------------------------------------------------------


def test_bill_has_each_part():
    prices = Prices(
        currency="CHF", per_mb=0.5, per_worker_hour=0.1, per_kwh=3.6, per_feature_unit=0.001,
        per_million_requests=2.0, per_device_month=3.0,
    )  # fmt: skip
    usage = Usage(
        seconds=MONTH / 10, devices=7, workers=4, bytes=3e6, joules=2e6, feature_units=500,
        requests=1e5,
    )  # fmt: skip
    bill = prices.month(usage)
    assert bill.currency == "CHF"
    parts = (bill.data, bill.workers, bill.energy, bill.features, bill.requests, bill.devices)
    assert parts == pytest.approx((15.0, 0.4 * 730.5, 20.0, 5.0, 2.0, 21.0))
    assert bill.total == pytest.approx(sum(parts))


amounts = st.floats(0, 1e9)


@given(amounts, amounts, amounts, amounts, st.integers(0, 9), st.floats(1, 1e7), st.floats(1, 50))
def test_a_run_twice_as_long_with_twice_the_use_costs_the_same(
    sent, joules, units, requests, workers, seconds, times
):
    prices = Prices(per_mb=0.01, per_worker_hour=0.08, per_kwh=0.36, per_feature_unit=0.002)
    used = {"bytes": sent, "joules": joules, "feature_units": units, "requests": requests}
    once = Usage(seconds=seconds, workers=workers, **used)
    longer = {name: times * amount for name, amount in used.items()}
    again = Usage(seconds=times * seconds, workers=workers, **longer)
    assert prices.month(again).total == pytest.approx(prices.month(once).total, rel=1e-9)


def test_prices_are_read_from_a_file(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('currency = "USD"\nper_mb = 1\nper_kwh = 0.36\n')
    assert Prices.from_file(file) == Prices(currency="USD", per_mb=1.0, per_kwh=0.36)
    file.write_text("default = 1\n[features]\na = 2\n[bill]\nper_mb = 1\n")  # training's file
    assert Prices.from_file(file) == Prices(per_mb=1.0)
    assert FeatureCosts.from_file(file).total == 2.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("per_gb = 1", "has an unknown key 'per_gb'; there are currency, per_mb"),
        ("per_kwh = inf", "per_kwh"),
        ("currency = 3", "currency: must be text, not 3"),
        ("per_mb", "prices.toml: "),
        ("[bill]\nper_mb = -1", "bill.per_mb: must be a number of at least 0"),
        ("default = 1", "has no table [bill]"),
    ],
)
def test_error_of_an_invalid_price_file_names_the_key(tmp_path, text, complaint):
    refused_file(Prices.from_file, tmp_path / "prices.toml", text, complaint)
