from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

import gatewise_signals as sig
from gatewise.documents import decode_json, encode_json, plain_values
from gatewise.errors import InputError
from gatewise_signals.document import SignalRecord, read_signal, write_signal
from gatewise_signals.pricing import price_table, table_of_steps
from gatewise_signals.signal_input import SignalInput


class Clock:
    """A clock on which step k of each run takes k + 1 seconds, and one run in three 9 more."""

    def __init__(self, steps: int) -> None:
        self.steps, self.calls, self.now = steps, 0, 0.0

    def __call__(self) -> float:
        turn, end = divmod(self.calls, 2)
        if end:
            run, step = divmod(turn, self.steps)
            self.now += step + 1 + (9 if run % 3 == 0 else 0)
        self.calls += 1
        return self.now


def test_the_time_of_a_step_is_the_shortest_of_its_runs():
    acc = sig.Channels()
    spectrum = sig.Spectrum(acc, 50.0)
    blocks = [sig.Mean(acc), sig.SpectralMoments(spectrum)]
    x = np.random.default_rng(0).normal(size=(5, 64))
    priced = sig.measured(blocks, x, clock=Clock(4))
    prices = [s.price for s in sig.SignalGraph(priced).steps]
    np.testing.assert_allclose(prices, [1e6, 2e6, 3e6, 4e6])
    joules = sig.measured(blocks, x, watts=0.5, clock=Clock(4))
    np.testing.assert_allclose(
        [s.price for s in sig.SignalGraph(joules).steps], np.divide(prices, 2)
    )
    assert priced == blocks


def test_measuring_without_windows_is_refused():
    blocks = [sig.Mean(sig.Channels())]
    for settings in ({"windows": np.zeros((0, 9))}, {"windows": np.zeros((1, 9)), "watts": -1}):
        with pytest.raises(InputError, match=r"measuring|watts"):
            sig.measured(blocks, **settings)


def two_blocks():
    acc = sig.Channels()
    return [sig.Mean(acc), sig.SpectralMoments(sig.Spectrum(acc, 50.0))]


@pytest.fixture
def table():
    x = np.random.default_rng(0).normal(size=(5, 64))
    return price_table(two_blocks(), x, watts=0.5, clock=Clock(4))


def test_a_file_prices_blocks_in_either_unit(table, tmp_path):
    path = tmp_path / "prices.json"
    table.write(path)
    assert sig.PriceTable.from_file(path) == table
    for unit, each in (("us", 1e6), ("uj", 0.5e6)):
        graph = sig.SignalGraph(sig.priced(two_blocks(), path, unit=unit))
        np.testing.assert_allclose([s.price for s in graph.steps], each * np.arange(1, 5))
        assert table_of_steps(graph) == structs.replace(table, unit=unit)
    with pytest.raises(InputError, match=r"no quantiles\(x, .*measure these blocks"):
        sig.priced([*two_blocks(), sig.Quantiles(sig.Channels(), (0.5,))], path)
    with pytest.raises(InputError, match="microjoules need the power of the processor"):
        sig.priced(two_blocks(), structs.replace(table, watts=None), unit="uj")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": []}, "shape: must have at least 1 entries"),
        ({"watts": -1}, "watts"),
        ({"microseconds": {"x": "much"}}, r"microseconds.x: must be a number"),
        ({"speed": 1}, "unknown key 'speed'"),
    ],
)
def test_invalid_price_files_are_refused(table, tmp_path, change, words):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(plain_values(table) | change))
    with pytest.raises(InputError, match=words):
        sig.priced(two_blocks(), path)


def test_a_bundle_contains_the_table_of_its_prices(table):
    """As long as all are: a price that was set by hand, or windows of another shape, are not."""
    x = np.random.default_rng(1).normal(size=(9, 64)).astype(np.float32)
    blocks = sig.priced(two_blocks(), table, unit="uj")
    signal = SignalInput.from_windows(blocks, x)
    record = decode_json(encode_json(write_signal(signal)), SignalRecord, "signal")
    assert read_signal(record, signal.feature_names).prices == signal.prices
    other = structs.replace(record, prices=structs.replace(table, microseconds={"x": 1.0}))
    with pytest.raises(InputError, match="prices: are for other steps or windows"):
        read_signal(other, signal.feature_names)
    assert signal.prices == structs.replace(table, unit="uj")
    by_hand = [replace(blocks[0], price=3.0), blocks[1]]
    assert SignalInput.from_windows(by_hand, x).prices is None
    with pytest.raises(
        InputError, match=r"measured on windows of shape \(64,\), but these .* \(32,\)"
    ):
        SignalInput.from_windows(blocks, x[:, :32])
