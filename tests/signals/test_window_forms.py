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

#: Names of the two channels.
CHANNEL_NAMES = ("x", "y")
#: Samples and channels of a window.
WINDOW_SHAPE = (20, 2)


def draw_windows(n_windows=40):
    """Draw windows of two classes with means that differ by 2, and their classes."""
    rng = np.random.default_rng(0)
    classes = np.arange(n_windows) % 2
    noise = rng.normal(0, 1, (n_windows, *WINDOW_SHAPE))
    return (noise + 2 * classes[:, None, None]).astype(np.float32), classes


def make_blocks():
    """Make two blocks with prices, so that no block is measured."""
    channels = sig.Channels("acc", (0, 1), CHANNEL_NAMES, price=1.0)
    return [sig.Mean(channels, price=1.0), sig.Quantiles(channels, (0.1, 0.9), price=3.0)]


def convert_to_frames(windows):
    return [pd.DataFrame(window, columns=CHANNEL_NAMES) for window in windows]


#: Functions that convert an array of windows to another form, by the name of the form.
CONVERT_TO_FORM = {
    "list of arrays": list,
    "list of lists": lambda windows: windows.tolist(),
    "list of frames": convert_to_frames,
}


def test_windows_with_numbers_of_another_type_are_refused():
    signal_input = sig.SignalInput(sig.SignalGraph(make_blocks()), WINDOW_SHAPE, "int16")
    windows = np.full((1, *WINDOW_SHAPE), 300.0)  # floats, but whole numbers
    windows[0, 0, 0] = np.nan  # a missing sample is allowed
    assert signal_input.as_checked_array(windows) is windows
    # floats beyond the largest int16, 32767; fractions; and integers beyond it
    for invalid_windows in (windows * 65536, windows / 7, np.full((1, *WINDOW_SHAPE), 70000)):
        with pytest.raises(InputError, match="the blocks are for int16: convert them to the type"):
            signal_input.features(invalid_windows)


def test_channels_and_blocks_with_different_rates_are_refused():
    channels = sig.Channels("acc", (0, 1), rate_hz=50.0)
    graph = sig.SignalGraph([sig.Mean(channels), sig.Mean(sig.Jerk(channels, 50.0))])
    signal_input = sig.SignalInput(graph, WINDOW_SHAPE)
    assert (signal_input.rate_hz, signal_input.n_channels) == (50.0, 2)
    mixed_graph = sig.SignalGraph([sig.Mean(sig.Jerk(channels, 100.0))])
    with pytest.raises(InputError, match="for 50 and 100 samples per second"):
        sig.SignalInput(mixed_graph, WINDOW_SHAPE)
    with pytest.raises(InputError, match="rate_hz"):
        sig.Channels("acc", rate_hz=-1.0)


def compute_features(windows):
    """Make the input for windows, and compute their features."""
    return sig.SignalInput.from_windows(make_blocks(), windows).features(windows)


@pytest.mark.parametrize("form", CONVERT_TO_FORM)
def test_all_forms_of_windows_give_the_features_of_an_array(form):
    windows, _ = draw_windows()
    converted_windows = CONVERT_TO_FORM[form](windows)
    np.testing.assert_array_equal(compute_features(converted_windows), compute_features(windows))


@pytest.mark.slow
def test_a_system_takes_lists_of_frames_from_fit_to_bundle(tmp_path):
    windows, classes = draw_windows(80)
    frames = convert_to_frames(windows)
    estimator = gw.StagedCascade(
        blocks=make_blocks(), families=("linear",), effort="low", n_stages=1, random_state=0
    )
    array_system = clone(estimator).fit(windows, classes)
    system = clone(estimator).fit(frames, classes)
    np.testing.assert_array_equal(system.predict(windows), array_system.predict(windows))
    np.testing.assert_array_equal(system.cost(frames), array_system.cost(windows))
    # one window without the axis of windows; any one
    assert system.explain(frames[3]).label == system.explain(windows[3]).label
    bundle = gw.pack(system, tmp_path / "bundle", sample=windows[:10])
    assert gw.verify(system, bundle, frames).agrees
    assert bundle.manifest.signal.shape == WINDOW_SHAPE
    with gw.Device(bundle, policy="edge-only") as device:
        assert device.answer(windows[0]).label == device.answer(frames[0]).label


@pytest.mark.parametrize(
    ("windows", "message_pattern"),
    [
        (
            [np.zeros((20, 2)), np.zeros((19, 2))],
            r"19 to 20 samples \(window 0 has 20, window 1 has 19\): cut",
        ),
        (["a", "b"], "must be numbers"),
    ],
)
def test_windows_of_unequal_lengths_or_of_text_are_refused(windows, message_pattern):
    with pytest.raises(InputError, match=message_pattern):
        as_windows(windows)


def test_windows_with_channels_first_cause_a_warning():
    # more channels than samples are rather three channels of 64 samples
    windows = np.random.default_rng(0).normal(size=(9, 3, 64))
    with pytest.warns(UserWarning, match=r"3 samples of 64 channels; .*swapaxes\(1, 2\)"):
        sig.SignalInput.from_windows(make_blocks(), windows)
