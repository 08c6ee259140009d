"""Energy of radios, and of what else a device draws."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_sim.fleet.energy import RADIOS, DeviceEnergy, Radio, radio_joules
from tests.support.refused import refused, refused_file

# Exact in binary, so that sums can be compared with ==.
PLAIN = Radio("x", wake_w=2, wake_s=0.5, active_w=4, tail_w=1, tail_s=8)

exchanges = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 24), st.integers(0, 5000), st.integers(0, 5000)),
    min_size=1,
    max_size=40,
)  # (quarter seconds since the one before began, quarter seconds long, up, down)


def laid_out(steps):
    now, found = 0.0, []
    for gap, length, up, down in steps:
        now += gap / 4
        found.append((now, now + length / 4, up, down))
    return found


def joules(radio: Radio, *exchanges) -> np.ndarray:
    """Energy that each of one device's (begin, end[, up, down]) adds."""
    columns = [np.array(c) for c in zip(*((*e, 0, 0)[:4] for e in exchanges), strict=True)]
    return radio_joules(radio, np.zeros(len(exchanges), np.int64), *columns)


def integral(radio: Radio, steps) -> float:
    """Energy of the states without bytes, by going through time a quarter second at a time."""
    end = max(e for _, e, _, _ in steps)
    active = np.zeros(round(4 * (end + radio.tail_s)) + 1, dtype=bool)
    for begin, until, _, _ in steps:
        active[round(4 * begin) : round(4 * until)] = True
    spent, wakes, awake_until = 0.0, 0, -1.0
    starts = {begin for begin, _, _, _ in steps}
    ends = sorted(e for _, e, _, _ in steps)
    for tick in range(len(active)):
        now = tick / 4
        if now in starts:
            wakes += now > awake_until
        done = [e for e in ends if e <= now and any(b <= now for b, x, _, _ in steps if x == e)]
        if active[tick]:
            spent += radio.active_w / 4
            awake_until = now + 0.25 + radio.tail_s
        else:
            if done:
                awake_until = max(awake_until, max(done) + radio.tail_s)
            if now < awake_until:
                spent += radio.tail_w / 4
    return spent + wakes * radio.wake_j


@given(exchanges)
def test_the_energy_is_the_integral_over_the_states(steps):
    spans = laid_out(steps)
    assert joules(PLAIN, *spans).sum() == integral(PLAIN, spans)  # PLAIN's bytes cost nothing


@given(exchanges, st.sampled_from(sorted(RADIOS)), st.integers(1, 5), st.randoms())
def test_a_fleet_at_once_is_one_device_after_the_other(steps, name, n_devices, random):
    radio = RADIOS[name]
    rows = sorted(
        (random.randrange(n_devices), *span) for span in laid_out(steps)
    )  # by device, then begin
    alone = [[span for device, *span in rows if device == d] for d in range(n_devices)]
    singly = np.concatenate([joules(radio, *spans) for spans in alone if spans])
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    assert radio_joules(radio, *columns).tolist() == singly.tolist()


def test_the_end_of_the_tail_itself_is_still_awake():
    _, awake, asleep = joules(
        PLAIN, (0.0, 1.0), (9.0, 9.0), (np.nextafter(17.0, 18), 17.5)
    ).tolist()
    assert awake == 8.0  # the tail that ran, and no waking up
    assert asleep > 8.0 + PLAIN.wake_j


def test_what_overlaps_is_active_once():
    assert joules(PLAIN, (0.0, 4.0), (1.0, 3.0), (3.0, 6.0)).tolist()[1:] == [0.0, 8.0]


def test_figures_are_those_of_the_papers():
    lte, wifi = RADIOS["lte"], RADIOS["wifi"]
    tail = 1.060 * 11.576
    assert tail == pytest.approx(12.27, abs=0.01)
    assert joules(lte, (0.0, 0.1, 300, 150)) == pytest.approx(
        tail + 1.2107 * 0.2601 + 0.128804 + lte.payload_j(300, 150)
    )
    # 1288 mW + 438 mW per Mbit/s: a second at 5 Mbit/s of IP bytes.
    spent = lte.active_w + 1e-6 * lte.up_uj_per_byte * 625_000
    assert spent == pytest.approx(1.28804 + 0.43839 * 5)
    # Feeney and Nilsson: 1.9 uJ/byte + 420 uJ out, 0.42 uJ/byte + 330 uJ in.
    assert wifi.payload_j(960, 0) == pytest.approx(1e-6 * (1.9 * 1000 + 420))
    assert wifi.payload_j(0, 1500) == pytest.approx(1e-6 * (0.42 * 1580 + 2 * 330))
    assert wifi.tail_j == wifi.wake_j == 0.0
    assert joules(RADIOS["none"], (0.0, 5.0, 10**6, 10**6)) == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_radio_is_checked(bad):
    with pytest.raises(InputError, match="radio 'x': tail_s"):
        Radio("x", tail_s=bad)


# -- devices --------------------------------------------------------------------------------

NAMES = ("age", "ecg", "thal")


def test_a_device_from_a_file(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(
        "idle_w = 0.02\nbattery_wh = 10\nstage_j = [0.5, 0.25]\nfeature_j = 1\n"
        "[features]\necg = 4\n"
    )
    device = DeviceEnergy.from_file(file, NAMES, 2)
    assert (device.idle_w, device.battery_wh) == (0.02, 10.0)
    acquired = np.array([[True, True, False], [False, True, True]])
    assert device.feature_joules(acquired).tolist() == [5.0, 5.0]
    assert device.stage_joules(np.array([1, 2])).tolist() == [0.5, 0.75]
    radio = Radio("x", idle_w=0.005)
    assert device.days(440.0, radio) == pytest.approx(36_000 / (440 + 0.025 * 86_400))


def test_an_empty_file_draws_nothing(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text("")
    device = DeviceEnergy.from_file(file, NAMES, 2)
    assert device.feature_joules(np.ones((1, 3), bool)).tolist() == [0.0]
    assert device.stage_joules(np.array([2])).tolist() == [0.0]
    assert device.days(5.0, RADIOS["lte"]) is None
    assert DeviceEnergy(battery_wh=1.0).days(0.0, RADIOS["lte"]) == math.inf


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("idle = 1", "unknown key 'idle'; there are idle_w"),
        ("battery_wh = 0", "battery_wh is 0, must be above 0"),
        ("stage_j = [1]", "stage_j has 1 figures, 2 stages run on the device"),
        ("stage_j = [1, nan]", "stage_j[1] is nan, not a number"),
        ("[features]\npulse = 1", "features: unknown key 'pulse'; there are age, ecg, thal"),
        ("[features]\necg = -1", "features.ecg is -1, must be at least 0"),
    ],
)
def test_a_bad_file_is_refused_by_its_key(tmp_path, text, complaint):
    read = partial(DeviceEnergy.from_file, features=NAMES, n_stages=2)
    refused_file(read, tmp_path / "device.toml", text, complaint)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: DeviceEnergy(idle_w=math.nan), "device: idle_w"),
        (lambda: DeviceEnergy(battery_wh=0.0), "device: battery_wh"),
        (lambda: DeviceEnergy(feature_j=np.array([1.0, math.nan])), "feature_j[1] must be"),
        (lambda: DeviceEnergy(stage_j=-1.0), "stage_j must be a number of"),
    ],
)
def test_figures_are_checked_without_a_file_too(make, complaint):
    refused(make, says=complaint)


def test_acquiring_and_computing():
    acquired = np.array([[True, False, True], [False, False, False], [True, True, True]])
    device = DeviceEnergy(feature_j=2.0, stage_j=0.5)
    assert device.feature_joules(acquired).tolist() == [4.0, 0.0, 6.0]
    assert device.stage_joules(np.array([1, 0, 2])).tolist() == [0.5, 0.0, 1.0]


def test_days_on_a_battery():
    # 18650 cell of 12.6 Wh: 453.6 J a day of work and 0.001 W at rest.
    cell = DeviceEnergy(idle_w=0.001, battery_wh=12.6)
    assert cell.days(453.6 - 86.4, RADIOS["none"]) == pytest.approx(100.0)
