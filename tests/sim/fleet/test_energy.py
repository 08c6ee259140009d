"""Tests of the energy of radios and devices, and of the bill."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.costs import FeatureCosts
from gatewise_sim.fleet.energy import (
    MONTH_SECONDS,
    RADIOS,
    DeviceEnergy,
    Prices,
    Radio,
    Usage,
    radio_joules,
)
from tests.support.refused import assert_file_refused

# The figures are exact in binary, so that sums can be compared with ==.
EXACT_RADIO = Radio(name="x", wake_w=2, wake_s=0.5, active_w=4, tail_w=1, tail_s=8)
WAKE_JOULES = EXACT_RADIO.wake_w * EXACT_RADIO.wake_s

#: Quarters of seconds, so that times are exact in binary; gaps are longer and shorter than a tail.
exchange_steps = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 24), st.integers(0, 5000), st.integers(0, 5000)),
    min_size=1,
    max_size=40,
)  # (quarter seconds since the previous begin, length in quarter seconds, bytes up, bytes down)


def make_spans(steps):
    """Convert exchanges to their (begin, end, bytes up, bytes down)."""
    now = 0.0
    spans = []
    for gap_quarters, length_quarters, bytes_up, bytes_down in steps:
        now += gap_quarters / 4
        spans.append((now, now + length_quarters / 4, bytes_up, bytes_down))
    return spans


def compute_joules(radio: Radio, *spans, device=None) -> np.ndarray:
    """Compute the energy of each exchange, given as (begin, end) or (begin, end, up, down)."""
    begin, end, bytes_up, bytes_down = (
        np.array(column) for column in zip(*((*span, 0, 0)[:4] for span in spans), strict=True)
    )
    device_numbers = np.zeros(len(spans), np.int64) if device is None else np.array(device)
    return radio_joules(radio, device_numbers, begin, end, bytes_up=bytes_up, bytes_down=bytes_down)


def integrate_power(radio: Radio, spans) -> float:
    """Integrate the power of the radio's states in steps of a quarter second, without bytes."""
    last_end = max(end for _, end, _, _ in spans)
    is_active = np.zeros(round(4 * (last_end + radio.tail_s)) + 1, dtype=bool)
    for begin, end, _, _ in spans:
        is_active[round(4 * begin) : round(4 * end)] = True
    energy = 0.0
    n_wakes = 0
    awake_until = -1.0
    begins = {begin for begin, _, _, _ in spans}
    for quarter in range(len(is_active)):
        now = quarter / 4
        if now in begins:
            n_wakes += now > awake_until
        past_ends = [end for begin, end, _, _ in spans if begin <= now and end <= now]
        if is_active[quarter]:
            energy += radio.active_w / 4
            awake_until = now + 0.25 + radio.tail_s
        else:
            if past_ends:
                awake_until = max(awake_until, max(past_ends) + radio.tail_s)
            if now < awake_until:
                energy += radio.tail_w / 4
    return energy + n_wakes * radio.wake_w * radio.wake_s


@given(exchange_steps)
def test_energy_is_the_integral_over_the_radio_states(steps):
    spans = make_spans(steps)
    assert compute_joules(EXACT_RADIO, *spans).sum() == integrate_power(
        EXACT_RADIO, spans
    )  # bytes cost nothing


@given(exchange_steps, st.sampled_from(sorted(RADIOS)), st.integers(1, 5), st.randoms())
def test_energy_of_a_fleet_is_the_sum_over_its_devices(steps, radio_name, n_devices, random_source):
    radio = RADIOS[radio_name]
    device_spans = sorted((random_source.randrange(n_devices), *span) for span in make_spans(steps))
    spans_by_device = [
        [span for device, *span in device_spans if device == number] for number in range(n_devices)
    ]
    separate_joules = np.concatenate(
        [compute_joules(radio, *spans) for spans in spans_by_device if spans]
    )
    # the fleet's exchanges are in the order of time, not of devices
    order = sorted(range(len(device_spans)), key=lambda index: device_spans[index][1])
    joint_joules = np.empty(len(device_spans))
    joint_joules[order] = compute_joules(
        radio,
        *(device_spans[index][1:] for index in order),
        device=[device_spans[index][0] for index in order],
    )
    # exchanges of a device that begin at the same time may share the tail in two ways
    if len({(device, begin) for device, begin, *_ in device_spans}) == len(device_spans):
        assert joint_joules.tolist() == separate_joules.tolist()


def test_radio_is_awake_at_the_end_of_its_tail():
    _, awake_joules, asleep_joules = compute_joules(
        EXACT_RADIO, (0.0, 1.0), (9.0, 9.0), (np.nextafter(17.0, 18), 17.5)
    ).tolist()
    assert awake_joules == 8.0  # the whole tail and no wake-up
    assert asleep_joules > 8.0 + WAKE_JOULES


def test_radios_have_the_figures_of_the_papers():
    lte, wifi = RADIOS["lte"], RADIOS["wifi"]
    tail_joules = 1.060 * 11.576
    assert tail_joules == pytest.approx(12.27, abs=0.01)
    # a whole tail, a wake-up, 0.1 s at 1.288 W, and 340 bytes up and 190 down with their headers
    payload_joules = 1e-6 * (438.39 * 8e-3 * 340 + 51.97 * 8e-3 * 190)
    assert compute_joules(lte, (0.0, 0.1, 300, 150)) == pytest.approx(
        tail_joules + 1.2107 * 0.2601 + 0.128804 + payload_joules
    )
    # 1288 mW + 438 mW per Mbit/s, for a second at 5 Mbit/s of IP bytes
    second_joules = lte.active_w + 1e-6 * lte.up_uj_per_byte * 625_000
    assert second_joules == pytest.approx(1.28804 + 0.43839 * 5)
    # Feeney and Nilsson measured 1.9 uJ/byte + 420 uJ to send, 0.42 uJ/byte + 330 uJ to receive
    assert wifi.payload_joules(960, 0) == pytest.approx(1e-6 * (1.9 * 1000 + 420))
    assert wifi.payload_joules(0, 1500) == pytest.approx(1e-6 * (0.42 * 1580 + 2 * 330))
    assert compute_joules(RADIOS["none"], (0.0, 5.0, 10**6, 10**6)) == 0.0


# -- devices ------------------------------------------------------------------------------------

FEATURE_NAMES = ("age", "ecg", "thal")


def test_device_energy_is_read_from_a_file(tmp_path):
    path = tmp_path / "device.toml"
    path.write_text(
        "idle_w = 0.02\nbattery_wh = 10\nstage_j = [0.5, 0.25]\nfeature_j = 1\n"
        "[features]\necg = 4\n"
    )
    energy = DeviceEnergy.from_file(path, FEATURE_NAMES, 2)
    is_acquired = np.array([[True, True, False], [False, True, True]])
    assert energy.feature_joules(is_acquired, FEATURE_NAMES).tolist() == [5.0, 5.0]
    assert energy.stage_joules(2).tolist() == [0.0, 0.5, 0.75]
    radio = Radio(name="x", idle_w=0.005)
    assert energy.battery_days(440.0, radio) == pytest.approx(36_000 / (440 + 0.025 * 86_400))
    # what the file omits takes no energy
    path.write_text("")
    energy = DeviceEnergy.from_file(path, FEATURE_NAMES, 2)
    assert energy.feature_joules(is_acquired, FEATURE_NAMES).tolist() == [0.0, 0.0]
    assert energy.stage_joules(2).tolist() == [0.0, 0.0, 0.0]
    assert energy.battery_days(5.0, RADIOS["lte"]) is None
    assert DeviceEnergy(battery_wh=1.0).battery_days(0.0, RADIOS["lte"]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("idle = 1", "has an unknown key 'idle'; there are idle_w"),
        ("battery_wh = 0", "battery_wh: must be a number above 0, not 0"),
        ("stage_j = [1]", "stage_j: has 1 entries; 2 stages run on the device"),
        ("stage_j = [1, nan]", "stage_j[1]: must be a number of at least 0, not NaN"),
        ("[features]\npulse = 1", "features.pulse: the bundle has no such feature"),
        ("[features]\necg = -1", "features.ecg: must be a number of at least 0, not -1"),
    ],
)
def test_error_of_an_invalid_device_file_names_the_key(tmp_path, text, message):
    read_energy = partial(DeviceEnergy.from_file, feature_names=FEATURE_NAMES, n_stages=2)
    assert_file_refused(read_energy, tmp_path / "device.toml", text, message)


# -- money --------------------------------------------------------------------------------------


def test_bill_is_the_sum_of_its_parts():
    prices = Prices(
        currency="CHF", per_mb=0.5, per_worker_hour=0.1, per_kwh=3.6, per_feature_unit=0.001,
        per_million_requests=2.0, per_device_month=3.0,
    )  # fmt: skip
    usage = Usage(
        seconds=MONTH_SECONDS / 10,
        n_devices=7,
        n_workers=4,
        n_bytes=3e6,
        joules=2e6,
        feature_units=500,
        n_requests=1e5,
    )
    bill = prices.monthly_bill(usage)
    assert bill.currency == "CHF"
    bill_parts = (bill.data, bill.workers, bill.energy, bill.features, bill.requests, bill.devices)
    assert bill_parts == pytest.approx((15.0, 0.4 * 730.5, 20.0, 5.0, 2.0, 21.0))
    assert bill.total == pytest.approx(sum(bill_parts))


def test_prices_are_read_from_a_file(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('currency = "USD"\nper_mb = 1\nper_kwh = 0.36\n')
    assert Prices.from_file(path) == Prices(currency="USD", per_mb=1.0, per_kwh=0.36)
    # a price file of training may contain the bill
    path.write_text("default = 1\n[features]\na = 2\n[bill]\nper_mb = 1\n")
    assert Prices.from_file(path) == Prices(per_mb=1.0)
    assert FeatureCosts.from_file(path).total == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("per_gb = 1", "has an unknown key 'per_gb'; there are currency, per_mb"),
        ("per_kwh = inf", "per_kwh"),
        ("currency = 3", "currency: must be text, not 3"),
        ("per_mb", "prices.toml: "),
        ("[bill]\nper_mb = -1", "bill.per_mb: must be a number of at least 0"),
        ("default = 1", "has no table [bill]"),
    ],
)
def test_error_of_an_invalid_price_file_names_the_key(tmp_path, text, message):
    assert_file_refused(Prices.from_file, tmp_path / "prices.toml", text, message)
