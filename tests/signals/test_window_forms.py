"""Windows as other libraries hold them: the same features, and clear errors."""

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


def test_a_window_s_numbers_are_those_of_its_type():
    counts = sig.SignalInput(sig.SignalGraph(blocks()), (20, 2), "int16")
    x = np.full((1, 20, 2), 300.0)
    x[0, 0, 0] = np.nan  # a missing sample
    assert counts.checked(x) is x
    for wrong in (x * 65536, x / 7, np.full((1, 20, 2), 70000)):
        with pytest.raises(InputError, match="the blocks are for int16: bring them to the width"):
            counts.features(wrong)


def test_channels_and_blocks_of_a_window_have_one_rate():
    fifty = sig.Channels("acc", (0, 1), rate_hz=50.0)
    graph = sig.SignalGraph([sig.Mean(fifty), sig.Goertzel(fifty, 50.0, (5.0,))])
    signal = sig.SignalInput(graph, (20, 2))
    assert (signal.rate_hz, signal.n_channels) == (50.0, 2)
    with pytest.raises(InputError, match="for 50 and 100 samples per second"):
        sig.SignalInput(sig.SignalGraph([sig.Goertzel(fifty, 100.0, (5.0,))]), (20, 2))
    with pytest.raises(InputError, match="rate_hz"):
        sig.Channels("acc", rate_hz=-1.0)


def windows(n=40):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    return (rng.normal(0, 1, (n, 20, 2)) + 2 * y[:, None, None]).astype(np.float32), y


def blocks():
    acc = sig.Channels("acc", (0, 1), ("x", "y"), price=1.0)
    return [sig.Mean(acc, price=1.0), sig.Quantiles(acc, (0.1, 0.9), price=3.0)]


def frames(x):
    return [pd.DataFrame(window, columns=COLUMNS) for window in x]


def indexed(x, order=None):
    """As sktime's pd-multiindex; rows in any order."""
    table = pd.concat(frames(x), keys=[f"recording {k}" for k in range(len(x))])
    return table if order is None else table.iloc[order]


FORMS = {
    "array": lambda x: x,
    "list of arrays": list,
    "list of lists": lambda x: x.tolist(),
    "list of frames": frames,
    "index (instance, time)": indexed,
    "index, samples backwards": lambda x: indexed(
        x, np.arange(x.shape[0] * x.shape[1]).reshape(len(x), -1)[:, ::-1].ravel()
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_features_of_the_array(form):
    x, _ = windows()
    expected = gw.BlockFeatures(blocks()).fit_transform(x)
    np.testing.assert_array_equal(
        gw.BlockFeatures(blocks()).fit_transform(FORMS[form](x)), expected
    )


@pytest.mark.slow
def test_a_system_takes_them_from_fit_to_bundle(tmp_path):
    x, y = windows(80)
    settings = {"families": ("linear",), "effort": "low", "n_stages": 1, "random_state": 0}
    plain = gw.StagedCascade(blocks=blocks(), **settings).fit(x, y)
    system = clone(gw.StagedCascade(blocks=blocks(), **settings)).fit(indexed(x), y)
    np.testing.assert_array_equal(system.predict(x), plain.predict(x))
    np.testing.assert_array_equal(system.cost(frames(x)), plain.cost(x))
    assert system.explain(frames(x)[3]).label == system.explain(x[3]).label
    bundle = gw.pack(system, tmp_path / "b", sample=x[:10])
    assert gw.verify(system, bundle, indexed(x)).agrees
    assert bundle.manifest.signal.shape == (20, 2)
    with gw.Device(bundle, policy="edge-only") as device:
        assert device.answer(x[0]).label == device.answer(frames(x)[0]).label


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            [np.zeros((20, 2)), np.zeros((19, 2))],
            r"19 to 20 samples \(1 has 19, 0 20\): cut or pad",
        ),
        (frames(np.zeros((1, 4, 2))) + frames(np.zeros((1, 5, 2))), "4 to 5 samples"),
        (indexed(np.zeros((2, 4, 2))).iloc[:-1], "'recording 1' has 3, 'recording 0' 4"),
        (
            indexed(np.zeros((2, 4, 2))).iloc[[0, 0, 4, 5]],
            "'recording 0' has two samples of one time",
        ),
        ([*frames(np.zeros((1, 4, 2))), pd.DataFrame(np.zeros((4, 2)))], "window 1 has columns"),
        (pd.DataFrame({"a": [pd.Series([1.0, 2.0])]}), r"object: give an index \(instance, time\)"),
        (indexed(np.zeros((2, 4, 2))).set_index(np.arange(8), append=True), "has 3 levels"),
        (["a", "b"], "must be numbers"),
    ],
)
def test_what_cannot_be_windows_is_refused_by_its_reason(given, words):
    with pytest.raises(InputError, match=words):
        as_windows(given)


def test_channels_that_may_stand_first_are_asked_about():
    x = np.random.default_rng(0).normal(size=(9, 3, 64))
    with pytest.warns(UserWarning, match=r"3 samples of 64 channels; .*swapaxes\(1, 2\)"):
        gw.BlockFeatures(blocks()).fit(x)
