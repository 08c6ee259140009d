"""The example that writes a router's configuration, on a log made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

EXAMPLE = Path(__file__).parents[1] / "examples/router_config.py"


def test_a_router_gets_a_threshold_that_keeps_the_graders_marks(tmp_path):
    rng = np.random.default_rng(0)
    win_rate = rng.uniform(size=3000)
    log = pd.DataFrame(
        {
            "win_rate": win_rate,
            "weak_mark": np.clip(rng.normal(0.9 - 0.5 * win_rate, 0.1), 0, 1),
            "strong_mark": np.clip(rng.normal(0.9, 0.1, 3000), 0, 1),
            "weak_cents": 0.02,
            "strong_cents": rng.exponential(1.0, 3000),
        }
    )
    log.to_csv(tmp_path / "log.csv", index=False)
    command = [sys.executable, EXAMPLE, tmp_path / "log.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    configuration = json.loads(done.stdout)
    sent = win_rate >= configuration["threshold"]
    mark = np.where(sent, log["strong_mark"], log["weak_mark"]).mean()
    assert mark >= log["strong_mark"].mean() - 0.02
    assert configuration["expected_strong_share"] == round(float(sent.mean()), 4) < 0.9
    assert configuration["model"] == f"router-mf-{configuration['threshold']:.5f}"
    assert "guaranteed with confidence 0.95" in done.stderr
