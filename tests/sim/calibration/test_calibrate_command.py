"""``gatewise calibrate``: prices of blocks on this machine, service times with a broker."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gatewise_signals as sig
from gatewise import cli
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.calibration.figures import Calibration
from tests.support.window_system import make_window_bundle, windows

MINE = """
import gatewise_signals as sig
acc = sig.Channels("acc", (0, 1))
def blocks():
    return [sig.Mean(acc), sig.Statistics(acc)]
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "calibrated_blocks.py").write_text(MINE)
    np.save(tmp_path / "windows.npy", windows(6)[0])
    return tmp_path


def test_a_list_of_blocks_is_measured_and_its_file_prices_them(here, capsys):
    asked = ["calibrate", "--device", "calibrated_blocks:blocks", "--data", "windows.npy"]
    assert cli.main([*asked, "--watts", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((here / "block-prices.json").read_text())
    assert [*document["steps"]] == ["acc", "mean(acc)", "statistics(acc)"]
    assert all(f["uj"] == 2 * f["us"] > 0 for f in document["steps"].values())
    import calibrated_blocks

    (mean, _) = sig.priced(calibrated_blocks.blocks(), here / "block-prices.json")
    assert mean.price == document["steps"]["mean(acc)"]["us"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--device", "calibrated_blocks:blocks"], "--data: give windows"),
        (["--device", "calibrated_blocks:number", "--data", "windows.npy"], "is no list of blocks"),
        (["--device", "nowhere", "--data", "windows.npy"], "nowhere does not exist"),
        (["bundle", "--watts", "2"], "give --device"),
        (["bundle"], "--data"),
        (["--device", "bundle", "--broker", "mqtt://b"], "no --device"),
    ],
)
def test_what_cannot_be_measured_is_refused(here, capsys, asked, words):
    assert cli.main(["calibrate", *asked]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_bundle_is_measured_with_its_own_windows(here, make_once, capsys):
    bundle = str(make_once("window-bundle", make_window_bundle))
    asked = ["calibrate", "--device", bundle]
    assert cli.main(asked) == 2
    assert "--block roughness=module:function" in capsys.readouterr().err
    given = ["--block", "roughness=tests.support.window_system:roughness"]
    assert cli.main([*asked, *given, "--out", "prices.json"]) == 0
    shown = capsys.readouterr().out
    assert "price in the bundle" in shown
    assert "500" in next(line for line in shown.splitlines() if line.startswith("spectrum"))
    blocks = Bundle.open(bundle).manifest.signal.graph.blocks
    assert all(b.price > 0 for b in sig.priced(blocks, "prices.json"))


@pytest.mark.slow
def test_service_times_are_measured_for_simulations(here, make_once, capsys):
    x, y = windows(40, seed=3)
    np.savez("rows.npz", X=x, y=y)
    bundle = str(make_once("window-bundle", make_window_bundle))
    given = ["--block", "roughness=tests.support.window_system:roughness"]
    assert cli.main(["calibrate", bundle, "--data", "rows.npz", *given]) == 0
    assert "a worker, for a request of one instance: " in capsys.readouterr().out
    found = Calibration.from_file("calibration.json")
    assert len(found.edge_ms) == 2
    assert min(found.edge_ms) > 0
