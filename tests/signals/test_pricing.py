"""Measured prices of blocks and the price tables that store them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

import gatewise_signals as sig
from gatewise.documents import decode_json, encode_json, plain_values
from gatewise.errors import InputError
from gatewise_signals.document import SignalRecord, make_signal_input, make_signal_record
from gatewise_signals.pricing import price_table, table_of_steps
from gatewise_signals.signal_input import SignalInput


class FakeClock:
    """A clock on which step k takes k + 1 seconds, and 9 seconds more in every third run."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.n_calls = 0
        self.now = 0.0

    def __call__(self) -> float:
        measurement_number, is_end = divmod(self.n_calls, 2)
        if is_end:
            run, step = divmod(measurement_number, self.n_steps)
            self.now += step + 1 + (9 if run % 3 == 0 else 0)
        self.n_calls += 1
        return self.now


def test_the_time_of_a_step_is_the_shortest_of_its_runs():
    channels = sig.Channels()
    spectrum = sig.Spectrum(channels, 50.0)
    blocks = [sig.Mean(channels), sig.SpectralMoments(spectrum)]
    x = np.random.default_rng(0).normal(size=(5, 64))
    priced_blocks = sig.priced(blocks, price_table(blocks, x, clock=FakeClock(4)))
    prices = [step.price for step in sig.SignalGraph(priced_blocks).steps]
    np.testing.assert_allclose(prices, [1e6, 2e6, 3e6, 4e6])  # microseconds
    table = price_table(blocks, x, watts=0.5, clock=FakeClock(4))
    blocks_in_microjoules = sig.priced(blocks, table, unit="uj")
    np.testing.assert_allclose(
        [step.price for step in sig.SignalGraph(blocks_in_microjoules).steps], np.divide(prices, 2)
    )
    assert priced_blocks == blocks


def test_measuring_without_windows_is_refused():
    blocks = [sig.Mean(sig.Channels())]
    for settings in ({"windows": np.zeros((0, 9))}, {"windows": np.zeros((1, 9)), "watts": -1}):
        with pytest.raises(InputError, match=r"measuring|watts"):
            sig.measured(blocks, **settings)


def make_two_blocks():
    channels = sig.Channels()
    return [sig.Mean(channels), sig.SpectralMoments(sig.Spectrum(channels, 50.0))]


@pytest.fixture
def measured_table():
    x = np.random.default_rng(0).normal(size=(5, 64))
    return price_table(make_two_blocks(), x, watts=0.5, clock=FakeClock(4))


def test_a_price_file_gives_prices_in_either_unit(measured_table, tmp_path):
    path = tmp_path / "prices.json"
    measured_table.write(path)
    assert sig.PriceTable.from_file(path) == measured_table
    for unit, first_price in (("us", 1e6), ("uj", 0.5e6)):
        graph = sig.SignalGraph(sig.priced(make_two_blocks(), path, unit=unit))
        np.testing.assert_allclose(
            [step.price for step in graph.steps], first_price * np.arange(1, 5)
        )
        assert table_of_steps(graph) == structs.replace(measured_table, unit=unit)
    with pytest.raises(InputError, match=r"no quantiles\(x, .*measure these blocks"):
        sig.priced([*make_two_blocks(), sig.Quantiles(sig.Channels(), (0.5,))], path)
    with pytest.raises(InputError, match="microjoules need the power of the processor"):
        sig.priced(make_two_blocks(), structs.replace(measured_table, watts=None), unit="uj")


@pytest.mark.parametrize(
    ("invalid_field", "message"),
    [
        ({"shape": []}, "shape: must have at least 1 entries"),
        ({"watts": -1}, "watts"),
        ({"microseconds": {"x": "much"}}, r"microseconds.x: must be a number"),
        ({"speed": 1}, "unknown key 'speed'"),
    ],
)
def test_invalid_price_files_are_refused(measured_table, tmp_path, invalid_field, message):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(plain_values(measured_table) | invalid_field))
    with pytest.raises(InputError, match=message):
        sig.priced(make_two_blocks(), path)


def test_a_bundle_contains_the_table_of_its_prices(measured_table):
    """The table is kept only if all prices come from it and the windows have its shape."""
    x = np.random.default_rng(1).normal(size=(9, 64)).astype(np.float32)
    blocks = sig.priced(make_two_blocks(), measured_table, unit="uj")
    signal = SignalInput.from_windows(blocks, x)
    record = decode_json(encode_json(make_signal_record(signal)), SignalRecord, "signal")
    assert make_signal_input(record, signal.feature_names).prices == signal.prices
    changed_record = structs.replace(
        record, prices=structs.replace(measured_table, microseconds={"x": 1.0})
    )
    with pytest.raises(InputError, match="prices: are for other steps or windows"):
        make_signal_input(changed_record, signal.feature_names)
    assert signal.prices == structs.replace(measured_table, unit="uj")
    changed_blocks = [replace(blocks[0], price=3.0), blocks[1]]
    assert SignalInput.from_windows(changed_blocks, x).prices is None
    with pytest.raises(
        InputError, match=r"measured on windows of shape \(64,\), but these .* \(32,\)"
    ):
        SignalInput.from_windows(blocks, x[:, :32])
