import math
from functools import partial

import numpy as np
import pytest

from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.energy.radio import RADIOS, Radio
from tests.support.refused import refused, refused_file

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
