"""Windows as arrays, lists and data frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import gatewise as gw
import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_signals.signal_input import as_windows

COLUMNS = ["x", "y"]


def test_windows_with_numbers_of_another_type_are_refused():
    signal = sig.SignalInput(sig.SignalGraph(make_blocks()), (20, 2), "int16")
    x = np.full((1, 20, 2), 300.0)
    x[0, 0, 0] = np.nan  # a missing sample
    assert signal.as_checked_array(x) is x
    for invalid_windows in (x * 65536, x / 7, np.full((1, 20, 2), 70000)):
        with pytest.raises(InputError, match="the blocks are for int16: convert them to the type"):
            signal.features(invalid_windows)


def test_channels_and_blocks_with_different_rates_are_refused():
    channels = sig.Channels("acc", (0, 1), rate_hz=50.0)
    graph = sig.SignalGraph([sig.Mean(channels), sig.Mean(sig.Jerk(channels, 50.0))])
    signal = sig.SignalInput(graph, (20, 2))
    assert (signal.rate_hz, signal.n_channels) == (50.0, 2)
    with pytest.raises(InputError, match="for 50 and 100 samples per second"):
        sig.SignalInput(sig.SignalGraph([sig.Mean(sig.Jerk(channels, 100.0))]), (20, 2))
    with pytest.raises(InputError, match="rate_hz"):
        sig.Channels("acc", rate_hz=-1.0)


def draw_windows(n=40):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    return (rng.normal(0, 1, (n, 20, 2)) + 2 * y[:, None, None]).astype(np.float32), y


def make_blocks():
    channels = sig.Channels("acc", (0, 1), ("x", "y"), price=1.0)
    return [sig.Mean(channels, price=1.0), sig.Quantiles(channels, (0.1, 0.9), price=3.0)]


def convert_to_frames(x):
    return [pd.DataFrame(window, columns=COLUMNS) for window in x]


CONVERT_TO_FORM = {
    "array": lambda x: x,
    "list of arrays": list,
    "list of lists": lambda x: x.tolist(),
    "list of frames": convert_to_frames,
}


def compute_features(convert, x):
    return sig.SignalInput.from_windows(make_blocks(), convert(x)).features(convert(x))


@pytest.mark.parametrize("form", CONVERT_TO_FORM)
def test_all_forms_of_windows_give_the_same_features(form):
    x, _ = draw_windows()
    np.testing.assert_array_equal(
        compute_features(CONVERT_TO_FORM[form], x), compute_features(CONVERT_TO_FORM["array"], x)
    )


@pytest.mark.slow
def test_a_system_takes_lists_of_frames_from_fit_to_bundle(tmp_path):
    x, y = draw_windows(80)
    settings = {"families": ("linear",), "effort": "low", "n_stages": 1, "random_state": 0}
    array_system = gw.StagedCascade(blocks=make_blocks(), **settings).fit(x, y)
    system = clone(gw.StagedCascade(blocks=make_blocks(), **settings)).fit(convert_to_frames(x), y)
    np.testing.assert_array_equal(system.predict(x), array_system.predict(x))
    np.testing.assert_array_equal(system.cost(convert_to_frames(x)), array_system.cost(x))
    assert system.explain(convert_to_frames(x)[3]).label == system.explain(x[3]).label
    bundle = gw.pack(system, tmp_path / "bundle", sample=x[:10])
    assert gw.verify(system, bundle, convert_to_frames(x)).agrees
    assert bundle.manifest.signal.shape == (20, 2)
    with gw.Device(bundle, policy="edge-only") as device:
        assert device.answer(x[0]).label == device.answer(convert_to_frames(x)[0]).label


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (
            [np.zeros((20, 2)), np.zeros((19, 2))],
            r"19 to 20 samples \(window 0 has 20, window 1 has 19\): cut",
        ),
        (["a", "b"], "must be numbers"),
    ],
)
def test_windows_of_unequal_lengths_or_of_text_are_refused(windows, message):
    with pytest.raises(InputError, match=message):
        as_windows(windows)


def test_windows_with_channels_first_cause_a_warning():
    x = np.random.default_rng(0).normal(size=(9, 3, 64))
    with pytest.warns(UserWarning, match=r"3 samples of 64 channels; .*swapaxes\(1, 2\)"):
        sig.SignalInput.from_windows(make_blocks(), x)
