"""Run the examples of signals, from the raw signal to a device and a worker.

They run unchanged, but with a high-cost model of few rounds and only linear stages, because fits
take most of the time.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA_FOLDER = Path(os.environ.get("GATEWISE_DATA", ROOT.parent / "shared/data"))
DATA_SET_OF_EXAMPLE = {
    "movement": "hapt_raw", "vibration": "cwru_bearing", "sound": "fsdd", "heart": "mitbih_ds1",
    "current": "plaid", "images": None,
}  # fmt: skip


def test_each_example_is_short_and_tested():
    scripts = {path.stem: path for path in (ROOT / "examples/signals").glob("*.py")}
    assert set(scripts) - {"live"} == set(DATA_SET_OF_EXAMPLE)
    # short enough to be read
    assert all(len(path.read_text().splitlines()) <= 80 for path in scripts.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA_SET_OF_EXAMPLE)
def test_an_example_prints_its_accuracy_costs_and_live_answers(name, monkeypatch, capsys):
    data_set = DATA_SET_OF_EXAMPLE[name]
    if data_set is not None and not (DATA_FOLDER / f"{data_set}.npz").is_file():
        pytest.skip(f"{data_set}.npz is not in {DATA_FOLDER}")
    script = ROOT / f"examples/signals/{name}.py"
    monkeypatch.setenv("GATEWISE_DATA", str(DATA_FOLDER))
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.syspath_prepend(script.parent)  # the example imports live.py from its folder
    search_settings = importlib.import_module("live").SEARCH
    search_settings["high_cost_model"].set_params(n_estimators=5)
    monkeypatch.setitem(search_settings, "families", ("linear",))
    runpy.run_path(str(script), run_name="__main__")
    output = capsys.readouterr().out
    pattern = r"new groups: accuracy (.*), (.*) of (.*) us of features per window; (.*)% off"
    accuracy, cost, total_cost, offload_percent = map(float, re.search(pattern, output).groups())
    assert accuracy > 0.6
    # the prices are measured, and with some of them every window goes to the high-cost model
    assert (cost < total_cost) == (offload_percent < 100)
    live_counts = re.search(r"live: \{(.*)\}", output).group(1)
    assert ("'edge'" in live_counts) == (offload_percent < 100)
    assert "fallback" not in live_counts
