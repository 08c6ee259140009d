"""Mel spectra and cepstra, compared with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import fft, signal

import gatewise_signals as sig
from gatewise.documents import convert, plain_values
from gatewise.errors import InputError
from gatewise_signals.document import SignalRecord, make_signal_input, make_signal_record
from gatewise_signals.signal_input import SignalInput

RATE = 8000.0
SIGNAL = sig.Channels()
FRAMES = sig.Spectrogram(SIGNAL, RATE, 200, 80)
MEL = sig.MelSpectrogram(FRAMES, 20, 60.0, 3800.0)


@pytest.fixture(scope="module")
def windows():
    rng = np.random.default_rng(2)
    seconds = np.arange(1000) / RATE
    sweep = np.sin(2 * np.pi * (rng.uniform(100, 900, (9, 1)) + 2000 * seconds) * seconds)
    return (8000 * sweep + rng.normal(0, 300, sweep.shape)).astype(np.int16)


def compute_mel(windows):
    """Compute the log mel spectrogram, (n, frames, bands), from scipy's spectrogram."""
    hz, _, power = signal.spectrogram(
        windows.astype(float), 1.0, "hann", nperseg=200, noverlap=120, nfft=256,
        detrend="constant", mode="psd", scaling="density",
    )  # fmt: skip
    power[:, 1:-1] /= 2  # scipy adds the negative frequencies to the positive ones
    hz = hz * RATE
    # O'Shaughnessy's mel scale: 2595 log10(1 + f / 700)
    lowest_mel, highest_mel = 2595 * np.log10(1 + np.array([60, 3800]) / 700)
    band_edges_hz = 700 * (10 ** (np.linspace(lowest_mel, highest_mel, 22) / 2595) - 1)
    band_weights = np.stack(
        [
            np.interp(hz, band_edges_hz[band : band + 3], [0, 1, 0], left=0, right=0)
            for band in range(20)
        ]
    )
    band_weights /= band_weights.sum(1, keepdims=True)
    return np.log(np.einsum("bf,nft->ntb", band_weights, power) + 1e-12)


def test_mel_energies_equal_triangles_on_scipys_spectrogram(windows):
    graph = sig.SignalGraph([sig.MelEnergies(MEL)])
    window_values = sig.graph.WindowValues(graph, windows)
    log_mel = compute_mel(windows)
    np.testing.assert_allclose(window_values.step_result(MEL)[:, 0], log_mel, atol=2e-4)
    moments = np.concatenate([log_mel.mean(1), log_mel.std(1)], axis=1)
    np.testing.assert_allclose(window_values.block_features(0), moments, atol=2e-4)


def test_mfcc_equal_scipys_cosine_transform(windows):
    block = sig.Mfcc(MEL, 13)
    cepstra = fft.dct(compute_mel(windows), norm="ortho")[..., :13]
    moments = np.concatenate([cepstra.mean(1), cepstra.std(1)], axis=1)
    features = sig.SignalGraph([block]).transform(windows)
    np.testing.assert_allclose(features, moments, atol=1e-3)
    assert block.suffixes[0] == "mean0"
    assert block.suffixes[-1] == "std12"


def test_mfcc_of_parts_are_added_behind_those_of_the_window(windows):
    block, block_without_parts = sig.Mfcc(MEL, 13, parts=3), sig.Mfcc(MEL, 13)
    cepstra = fft.dct(compute_mel(windows), norm="ortho")[..., :13]
    assert cepstra.shape[1] == 11  # 1 + (1000 - 200) / 80 frames, in parts of 3, 4 and 4 frames
    part_means = [cepstra[:, begin:end].mean(1) for begin, end in ((0, 3), (3, 7), (7, 11))]
    features = sig.SignalGraph([block]).transform(windows)
    np.testing.assert_array_equal(
        features[:, :26], sig.SignalGraph([block_without_parts]).transform(windows)
    )
    np.testing.assert_allclose(features[:, 26:], np.concatenate(part_means, axis=1), atol=1e-3)
    assert block.suffixes[26] == "part0.mean0"
    with pytest.raises(InputError, match="12 parts need at least 12 frames, but windows have 11"):
        sig.SignalGraph([sig.Mfcc(MEL, 13, parts=12)]).transform(windows)


def test_documents_omit_settings_at_their_default(windows):
    def make_document(block):
        return plain_values(make_signal_record(SignalInput.from_windows([block], windows)))

    def read_block(document, block):
        return make_signal_input(convert(document, SignalRecord), block.names).graph.blocks[0]

    block_without_parts, block_with_parts = sig.Mfcc(MEL, 13), sig.Mfcc(MEL, 13, 3)
    document_without_parts = make_document(block_without_parts)
    document_with_parts = make_document(block_with_parts)
    assert "parts" not in document_without_parts["steps"][-1]
    assert document_with_parts["steps"][-1]["parts"] == 3
    assert read_block(document_without_parts, block_without_parts) == block_without_parts
    assert read_block(document_with_parts, block_with_parts) == block_with_parts


def test_windows_shorter_than_a_frame_are_refused():
    with pytest.raises(InputError, match="frame needs 200 samples, but windows have 199"):
        sig.SignalGraph([sig.Mfcc(MEL)]).transform(np.zeros((1, 199)))
