import math
from functools import partial

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.energy.radio import RADIOS, Radio
from tests.sim.refused import refused_file

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
    assert device.acquisition.joules(acquired, np.array([1, 2])).tolist() == [5.5, 5.75]
    radio = Radio("x", idle_w=0.005)
    assert device.days(440.0, radio) == pytest.approx(36_000 / (440 + 0.025 * 86_400))


def test_an_empty_file_draws_nothing(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text("")
    device = DeviceEnergy.from_file(file, NAMES, 2)
    assert device.acquisition.joules(np.ones((1, 3), bool), np.array([2])).tolist() == [0.0]
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


def test_figures_are_checked_without_a_file_too():
    with pytest.raises(InputError, match="device: idle_w"):
        DeviceEnergy(idle_w=math.nan)
    with pytest.raises(InputError, match="device: battery_wh"):
        DeviceEnergy(battery_wh=0.0)
