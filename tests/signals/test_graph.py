"""Graphs of blocks: features per window, shared steps and their costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gatewise_signals as sig
from gatewise.documents import DocumentError, convert
from gatewise.errors import InputError
from gatewise_signals.document import SignalRecord, make_signal_input
from tests.support.signal_blocks import CHANNELS, draw_window, make_signal_blocks

BLOCKS = make_signal_blocks()
GRAPH = sig.SignalGraph(BLOCKS)


def have_same_bits(first_features, second_features):
    """Whether all bits are equal; all NaN count as one value."""
    is_same = (first_features.view(np.uint32) == second_features.view(np.uint32)) | (
        np.isnan(first_features) & np.isnan(second_features)
    )
    return bool(is_same.all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(16, 150), st.integers(1, 9))
def test_features_of_a_window_do_not_depend_on_the_batch(seed, n_samples, n_windows):
    rng = np.random.default_rng(seed)
    windows = [draw_window(rng, n_samples, CHANNELS) for _ in range(n_windows)]
    with np.errstate(all="ignore"):
        windows = np.stack([window.astype(windows[0].dtype) for window in windows])
    batch_features = GRAPH.transform(windows)
    single_features = np.concatenate([GRAPH.transform(window[None]) for window in windows])
    assert have_same_bits(batch_features, single_features)


def test_transform_equals_the_steps_computed_per_window():
    rng = np.random.default_rng(3)
    windows = np.cumsum(rng.normal(0, 99, (300, 64, CHANNELS)), axis=1).astype(np.int16)
    batch_features = GRAPH.transform(windows)
    single_features = []
    for window in windows:
        window_values = GRAPH.lazy_values(window)
        features = [window_values.block_features(number)[0] for number in range(len(BLOCKS))]
        single_features.append(np.concatenate(features))
    assert have_same_bits(batch_features, np.stack(single_features))


MEL = sig.MelSpectrogram(sig.Spectrogram(sig.Channels("mic"), 8000.0, 256, 128))


@pytest.mark.parametrize(
    ("block", "other_block"),
    [
        (sig.Mfcc(MEL, 5), sig.Mfcc(MEL, parts=5)),
        (sig.GreyHistogram(sig.Pixels(), bins=8), sig.GreyHistogram(sig.Pixels(), low=8.0)),
        (
            sig.Quantiles(sig.Channels(), (0.99999901,)),
            sig.Quantiles(sig.Channels(), (0.99999902,)),
        ),
    ],
)
def test_different_blocks_have_different_labels(block, other_block):
    assert block.label != other_block.label
    assert len(sig.SignalGraph([block, other_block]).blocks) == 2


@pytest.mark.parametrize("setting", [{"indices": [0, 1]}, {"axes": "xyz", "indices": (0, 1, 2)}])
def test_channels_refuse_lists_and_texts(setting):
    with pytest.raises(InputError, match=r"channels 'acc': .* must be a tuple, not"):
        sig.Channels("acc", **setting)


def test_labels_are_short_if_all_settings_before_are_given():
    assert sig.Mfcc(MEL, 5).label == "mfcc(mel(spectrogram(mic, 8000, 256, 128)), 5)"
    assert sig.Mfcc(MEL, parts=5).label == "mfcc(mel(spectrogram(mic, 8000, 256, 128)), parts=5)"


@pytest.mark.slow
def test_ten_thousand_random_windows_give_features_or_an_input_error():
    rng = np.random.default_rng(4)
    n_refused = 0
    for _ in range(400):
        n_samples = int(rng.choice([0, 1, 2, 7, 15, 16, 33, 64], p=[0.05] * 5 + [0.25] * 3))
        n_channels = int(rng.choice([1, 2, CHANNELS, 4], p=[0.05, 0.05, 0.8, 0.1]))
        windows = np.stack([draw_window(rng, n_samples, n_channels) for _ in range(25)])
        try:
            features = GRAPH.transform(windows)
        except InputError:
            n_refused += 1
            continue
        assert features.shape == (25, len(GRAPH.feature_names))
        assert features.dtype == np.float32
    assert 80 < n_refused < 320  # many batches are refused, and many are not


@pytest.mark.parametrize(
    "windows", [np.asarray([["a"]]), np.asarray([[1j]]), np.zeros((1, 9), "O")]
)
def test_windows_without_numbers_are_refused(windows):
    with pytest.raises(InputError, match="give numbers"):
        sig.SignalGraph([sig.Mean(sig.Channels())]).transform(windows)


def test_a_step_is_computed_once_and_only_when_read():
    window_values = GRAPH.lazy_values(np.ones((32, CHANNELS)))
    assert not window_values._results
    moments_index = next(i for i, block in enumerate(BLOCKS) if block.kind == "moments")
    window_values.block_features(moments_index)
    window_values.block_features(moments_index)
    computed_kinds = [GRAPH.steps[index].kind for index in window_values._results]
    assert computed_kinds == ["channels", "spectrum", "moments"]


def test_costs_charge_shared_steps_once():
    channels = sig.Channels()
    spectrum = sig.Spectrum(channels, 50.0)
    blocks = [sig.BandPowers(spectrum, (1.0, 2.0, 3.0)), sig.SpectralMoments(spectrum)]
    with pytest.raises(InputError, match="no price of"):
        sig.SignalGraph(blocks).costs()
    prices = {channels: 1.0, spectrum: 10.0, blocks[0]: 2.0, blocks[1]: 3.0}
    graph = sig.SignalGraph([block.with_prices(prices) for block in blocks])
    acquired = np.zeros((2, 7), bool)
    acquired[0, 0] = True
    acquired[1] = True
    # channels, spectrum and the first block, and in the second row both blocks
    assert [graph.costs().price(row) for row in acquired] == [13.0, 16.0]


@pytest.mark.parametrize(("kind", "n_inputs"), [("envelope", 1), ("difference", 2)])
def test_a_document_with_deep_steps_is_refused(kind, n_inputs):
    """The document has 1,500 nested steps, or steps that each double the size of the graph."""
    is_picture = n_inputs == 2
    input_names, settings = (("before", "after"), {}) if is_picture else (("source",), {"width": 1})
    first_step = {"kind": "pixels" if is_picture else "channels", "name": "x", "scale": 1.0}
    steps = [first_step if is_picture else first_step | {"indices": [0], "axes": []}]
    steps += [{"kind": kind} | dict.fromkeys(input_names, i) | settings for i in range(1500)]
    document = {"shape": [8, 8], "dtype": "uint8", "steps": steps, "blocks": [1500]}
    with pytest.raises(DocumentError, match=r"steps\[\d+\]: has a label of more than 1024 bytes"):
        make_signal_input(convert(document, SignalRecord), ("a",))


def test_a_document_with_two_rates_is_refused_for_its_blocks():
    channels = {"kind": "channels", "indices": [0], "axes": []}
    steps = [
        channels | {"name": "x", "rate_hz": 50.0},
        channels | {"name": "z", "rate_hz": 100.0},
        {"kind": "mean", "source": 0},
        {"kind": "mean", "source": 1},
    ]
    document = {"shape": [8], "dtype": "int16", "steps": steps, "blocks": [2, 3]}
    blocks = [sig.Mean(sig.Channels(name=name, indices=(0,))) for name in ("x", "z")]
    feature_names = sig.SignalGraph(blocks).feature_names
    with pytest.raises(DocumentError, match="are for 50 and 100 samples per second") as error_info:
        make_signal_input(convert(document, SignalRecord), feature_names)
    assert error_info.value.field == "blocks"


def test_invalid_lists_of_blocks_are_refused():
    for blocks in ([], [3], [sig.Mean(sig.Channels())] * 2):
        with pytest.raises(InputError, match="block"):
            sig.SignalGraph(blocks)
