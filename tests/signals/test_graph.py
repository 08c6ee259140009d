from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gatewise_signals as sig
from gatewise.documents import DocumentError, convert
from gatewise.errors import InputError
from gatewise_signals.document import SignalRecord, read_signal
from tests.support.signal_blocks import CHANNELS, random_window, signal_blocks

BLOCKS = signal_blocks()
GRAPH = sig.SignalGraph(BLOCKS)


def same_bits(a, b):
    """Equal bit by bit; NaN is one value, whatever its sign."""
    same = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return bool(same.all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(16, 150), st.integers(1, 9))
def test_a_window_has_the_same_bits_alone_as_among_others(seed, samples, n):
    rng = np.random.default_rng(seed)
    windows = [random_window(rng, samples, CHANNELS) for _ in range(n)]
    with np.errstate(all="ignore"):
        windows = np.stack([w.astype(windows[0].dtype) for w in windows])
    together = GRAPH.transform(windows)
    alone = np.concatenate([GRAPH.transform(w[None]) for w in windows])
    assert same_bits(together, alone)


def test_many_windows_have_the_bits_of_one():
    rng = np.random.default_rng(3)
    windows = np.cumsum(rng.normal(0, 99, (300, 64, CHANNELS)), axis=1).astype(np.int16)
    together = GRAPH.transform(windows)
    values = [GRAPH.start(w) for w in windows]
    alone = [np.concatenate([v.of_block(b)[0] for b in range(len(BLOCKS))]) for v in values]
    assert same_bits(together, np.stack(alone))


@pytest.mark.slow
def test_ten_thousand_strange_windows_give_an_array_or_an_input_error():
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(400):
        samples = int(rng.choice([0, 1, 2, 7, 15, 16, 33, 64], p=[0.05] * 5 + [0.25] * 3))
        channels = int(rng.choice([1, 2, CHANNELS, 4], p=[0.05, 0.05, 0.8, 0.1]))
        windows = np.stack([random_window(rng, samples, channels) for _ in range(25)])
        try:
            result = GRAPH.transform(windows)
        except InputError:
            refused += 1
            continue
        assert result.shape == (25, len(GRAPH.feature_names))
        assert result.dtype == np.float32
    assert 80 < refused < 320


@pytest.mark.parametrize(
    "windows", [np.asarray([["a"]]), np.asarray([[1j]]), np.zeros((1, 9), "O")]
)
def test_windows_without_numbers_are_refused(windows):
    with pytest.raises(InputError, match="give numbers"):
        sig.SignalGraph([sig.Mean(sig.Channels())]).transform(windows)


def test_a_step_is_computed_once_and_only_when_read():
    values = GRAPH.start(np.ones((32, CHANNELS)))
    assert values.computed == ()
    bands = next(i for i, b in enumerate(BLOCKS) if b.kind == "moments")
    values.of_block(bands)
    values.of_block(bands)
    assert [s.kind for s in values.computed] == ["channels", "spectrum", "moments"]


def test_costs_charge_shared_steps_once():
    acc = sig.Channels()
    spectrum = sig.Spectrum(acc, 50.0)
    blocks = [sig.BandPowers(spectrum, (1.0, 2.0, 3.0)), sig.SpectralMoments(spectrum)]
    with pytest.raises(InputError, match="no price of"):
        sig.SignalGraph(blocks).costs()
    prices = {acc: 1.0, spectrum: 10.0, blocks[0]: 2.0, blocks[1]: 3.0}
    graph = sig.SignalGraph([b.with_prices(prices) for b in blocks])
    read = np.zeros((2, 7), bool)
    read[0, 0] = True
    read[1] = True
    assert [graph.costs().price(row) for row in read] == [13.0, 16.0]


@pytest.mark.parametrize(("step", "reads"), [("envelope", 1), ("difference", 2)])
def test_a_document_with_deep_steps_is_refused(step, reads):
    """A thousand deep, or of twice the size at each step: refused before anything walks it."""
    picture = reads == 2
    names, more = (("before", "after"), {}) if picture else (("source",), {"width": 1})
    first = {"kind": "pixels" if picture else "channels", "name": "x", "scale": 1.0}
    steps = [first if picture else first | {"indices": [0], "axes": []}]
    steps += [{"kind": step} | dict.fromkeys(names, i) | more for i in range(1500)]
    document = {"shape": [8, 8], "dtype": "uint8", "steps": steps, "blocks": [1500]}
    with pytest.raises(DocumentError, match=r"steps\[\d+\]: has a label of more than 1024 bytes"):
        read_signal(convert(document, SignalRecord), ("a",))


def test_blocks_are_checked():
    for blocks in ([], [3], [sig.Mean(sig.Channels())] * 2):
        with pytest.raises(InputError, match="block"):
            sig.SignalGraph(blocks)
