"""The examples of signals run as they stand, from raw signal to a device and a worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GATEWISE_DATA", ROOT.parent / "shared/data"))
EXAMPLES = {
    "movement": "hapt_raw", "vibration": "cwru_bearing", "sound": "fsdd", "heart": "mitbih_ds1",
    "current": "plaid", "images": None,
}  # fmt: skip


def test_each_example_is_short_and_is_run_here():
    scripts = {path.stem: path for path in (ROOT / "examples/signals").glob("*.py")}
    assert set(scripts) - {"live"} == set(EXAMPLES)
    assert all(len(path.read_text().splitlines()) <= 80 for path in scripts.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_goes_from_raw_signal_to_live_answers(name):
    data = EXAMPLES[name]
    if data is not None and not (DATA / f"{data}.npz").is_file():
        pytest.skip(f"{data}.npz is not in {DATA}")
    done = subprocess.run(
        [sys.executable, ROOT / f"examples/signals/{name}.py"],
        env=os.environ | {"GATEWISE_DATA": str(DATA)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"new groups: (.*) right, (.*) us of .* take (.*); (.*)% off", done.stdout)
    right, cost, total, _ = map(float, found.groups())
    assert right > 0.6
    assert cost < total
    live = re.search(r"live: \{(.*)\}", done.stdout).group(1)
    assert "'edge'" in live
    assert "fallback" not in live
