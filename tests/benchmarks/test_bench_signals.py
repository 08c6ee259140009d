"""Tests of the cached splits of the benchmark of signals."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import bench_signals
from benchmarks.signals.cascades import fit_cascade
from benchmarks.signals.peers import fit_peers


@pytest.mark.slow
@pytest.mark.parametrize("fit", [fit_cascade, fit_peers])
def test_a_split_is_fitted_again_with_other_prices(fit, monkeypatch, tmp_path):
    monkeypatch.setattr(bench_signals, "FOLDER", tmp_path)
    priced_sets = []

    def count_fit(priced_set):
        priced_sets.append(priced_set)
        return {}

    count_fit.__module__ = fit.__module__  # the key has the code of this module
    for price in (1.0, 1.0, 2.0):
        priced_set = SimpleNamespace(
            signal_set=SimpleNamespace(name="beats"), prices={"spectrum": price}
        )
        priced_set.split = lambda number, priced_set=priced_set: priced_set
        bench_signals._read_or_fit(count_fit, "", 0, priced_set)
    assert [priced_set.prices["spectrum"] for priced_set in priced_sets] == [1.0, 2.0]
