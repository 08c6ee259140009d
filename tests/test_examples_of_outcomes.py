"""Test of the example that writes a router's configuration, on a synthetic log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples/router_config.py"


def run_example(log_table, folder):
    """Run the example on a log; return the configuration and the summary that it prints."""
    log_table.to_csv(folder / "log.csv", index=False)
    command = [sys.executable, EXAMPLE, folder / "log.csv"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout), process.stderr


@pytest.mark.slow
def test_router_threshold_keeps_the_mean_grade(tmp_path):
    """The threshold keeps the mean mark within 0.02 of the strong model's.

    In the log the weak model is as good at a win rate of 0, and much worse at 1.
    """
    rng = np.random.default_rng(0)
    win_rate = rng.uniform(size=3000)
    log_table = pd.DataFrame(
        {
            "win_rate": win_rate,
            "weak_grade": np.clip(rng.normal(0.9 - 0.5 * win_rate, 0.1), 0, 1),
            "strong_grade": np.clip(rng.normal(0.9, 0.1, 3000), 0, 1),
            "weak_cents": 0.02,
            "strong_cents": rng.exponential(1.0, 3000),
        }
    )
    configuration, summary = run_example(log_table, tmp_path)
    uses_strong_model = win_rate >= configuration["threshold"]
    grades = np.where(uses_strong_model, log_table["strong_grade"], log_table["weak_grade"])
    # the loss of 0.02 that the example allows
    assert grades.mean() >= log_table["strong_grade"].mean() - 0.02
    assert configuration["expected_strong_share"] == round(float(uses_strong_model.mean()), 4) < 0.9
    # a higher threshold would not be guaranteed
    named_threshold = float(configuration["model"].removeprefix("router-mf-"))
    assert configuration["threshold"] - 1e-5 < named_threshold <= configuration["threshold"]
    assert "guaranteed with confidence 0.95" in summary


@pytest.mark.slow
def test_router_threshold_is_a_probability_if_the_weak_model_suffices(tmp_path):
    log_table = pd.DataFrame(
        {
            "win_rate": np.random.default_rng(0).uniform(size=600),
            "weak_grade": 0.9,
            "strong_grade": 0.9,
            "weak_cents": 0.02,
            "strong_cents": 1.0,
        }
    )
    configuration, _ = run_example(log_table, tmp_path)
    assert configuration["threshold"] == 1.0
    assert configuration["model"] == "router-mf-1.00000"
