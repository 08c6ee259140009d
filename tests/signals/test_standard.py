"""Standard blocks for sensors with any channels, rate and window length."""

from __future__ import annotations

import numpy as np
import pytest

import gatewise_signals as sig
from gatewise.errors import InputError
from tests.support.shared_data import find_shared_file

SIX_CHANNELS = [f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in "xyz"]


@pytest.mark.parametrize("rate_hz", [0.01, 1, 50, 2000, 8000, 44100, 192000])
@pytest.mark.parametrize("n_samples", [None, 2, 5, 64, 1000])
def test_standard_blocks_compute_features_at_any_rate_and_length(rate_hz, n_samples):
    channels = ["acc_x", "acc_y", "acc_z", "current"]
    blocks = sig.standard_blocks(rate_hz=rate_hz, channels=channels, samples=n_samples)
    graph = sig.SignalGraph(blocks)
    n_samples = n_samples or max(16, 1 << int(0.064 * rate_hz).bit_length())
    x = np.random.default_rng(0).normal(size=(2, n_samples, 4))
    assert np.isfinite(graph.transform(x)).all()
    assert len(set(graph.feature_names)) == len(graph.feature_names)


def test_channels_of_one_sensor_are_one_signal():
    blocks = sig.standard_blocks(rate_hz=50, channels=SIX_CHANNELS)
    signals = {step for step in sig.SignalGraph(blocks).steps if isinstance(step, sig.Channels)}
    assert {(signal.name, signal.indices, signal.axes) for signal in signals} == {
        ("acc", (0, 1, 2), ("x", "y", "z")),
        ("gyro", (3, 4, 5), ("x", "y", "z")),
    }
    assert [block.label for block in blocks if isinstance(block, sig.Tilt)] == ["tilt(acc)"]
    groups = {"vertical": ["acc_y", "gyro_y"], "horizontal": ["acc_x", "acc_z", "gyro_x", "gyro_z"]}
    blocks = sig.standard_blocks(rate_hz=50, channels=SIX_CHANNELS, groups=groups, scale=0.5)
    first_signal = blocks[0].source
    assert (first_signal.name, first_signal.indices, first_signal.axes, first_signal.scale) == (
        "vertical", (1, 4), ("acc_y", "gyro_y"), 0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "name"),
    [
        (["x", "y", "z"], "xyz"),
        (["Z", "X", "Y"], "xyz"),
        (["accX", "accY", "accZ"], "acc"),
        (["ax", "ay", "az"], "a"),
        (["acc x", "acc y", "acc z"], "acc"),
    ],
)
def test_axes_form_one_signal_in_any_spelling(channels, name):
    blocks = sig.standard_blocks(rate_hz=50, channels=[*channels, "max", "load"], unit="g")
    graph = sig.SignalGraph(blocks)
    signals = {step.name: step for step in graph.steps if isinstance(step, sig.Channels)}
    assert {*signals} == {name, "max", "load"}
    assert sorted(signals[name].axes) == ["x", "y", "z"]
    assert (signals[name].unit, signals[name].rate_hz) == ("g", 50.0)
    assert {f"tilt({name})", f"statistics(magnitude({name}))"} <= {block.label for block in blocks}


def test_cheap_blocks_come_first():
    x = np.load(find_shared_file("hapt_windows.npz"))["X"][::900]
    blocks = sig.measured(sig.standard_blocks(rate_hz=50, channels=SIX_CHANNELS, samples=128), x)
    prices = np.asarray([block.price for block in blocks])
    n_quarter = len(prices) // 4
    assert prices[:n_quarter].mean() < prices[-2 * n_quarter :].mean()
    assert sig.SignalGraph(blocks).costs().total > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate_hz": 0}, "rate_hz"),
        ({"channels": []}, "channels"),
        ({"channels": ["a", "a"]}, "once"),
        ({"groups": {"s": ["a"]}}, "belong to exactly one"),
        ({"channels": ["a.b"]}, "channel name"),
        ({"samples": 0}, "samples"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        sig.standard_blocks(**({"rate_hz": 50, "channels": ["a", "b"]} | settings))


def test_the_repr_of_blocks_is_short():
    blocks_repr = repr(sig.standard_blocks(rate_hz=100, channels=["x"])[:3])
    assert blocks_repr == "[mean(x), crossings(x), quantiles(x)]"


def test_a_channel_with_the_name_of_axes_is_a_signal_of_its_own():
    blocks = sig.standard_blocks(rate_hz=50, channels=["acc_x", "acc_y", "acc_z", "acc"])
    signals = {
        step.name: step.indices
        for step in sig.SignalGraph(blocks).steps
        if isinstance(step, sig.Channels)
    }
    assert sorted(signals.values()) == [(0, 1, 2), (3,)]
    assert len(signals) == 2
